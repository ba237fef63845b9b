"""What managers and schedulers answer."""

from kvbus.offload.transfers import CPULoadStoreSpec, LoadJob, LookupResult, PrepareStoreOutput, StoreJob


def test_a_lookup_has_three_answers() -> None:
    assert ["miss", "hit", "hit pending"] == [result.value for result in LookupResult]


def test_answers_name_slots_in_the_order_of_the_keys() -> None:
    """The fields are public and positional: whoever carries out a copy unpacks them."""
    assert ("block_ids",) == CPULoadStoreSpec._fields
    assert ("keys_to_store", "store_spec", "evicted_keys") == PrepareStoreOutput._fields
    assert ("request_id", "keys", "load_spec", "num_tokens") == LoadJob._fields
    assert ("job_id", "keys", "store_spec", "evicted_keys", "request_id") == StoreJob._fields
