"""What vLLM and SGLang answer, in every form, as workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbus.config.workers import WorkerConfig
from kvbus.discovery.answers import AnswerError, sglang_workers, vllm_workers


def source(rank=0, endpoint="tcp://*:5557", replay=None, **more):
    return {"data_parallel_rank": rank, "endpoint": endpoint, "replay_endpoint": replay, "topic": "", **more}


def vllm(answer, host="10.0.0.1"):
    return vllm_workers(answer, "e", host, "g")


def worker(worker_id="e", endpoint="tcp://10.0.0.1:5557", replay=None, ranks=None):
    return WorkerConfig(worker_id=worker_id, endpoint=endpoint, replay_endpoint=replay, ranks=ranks, group="g")


@pytest.mark.parametrize(
    "answer",
    [
        [source()],
        {"sources": [source()]},
        {"0": {"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": None}},
        [{"endpoint": "tcp://0.0.0.0:5557"}],
        [source(endpoint="tcp://[::]:5557")],
        [source(endpoint="tcp://10.0.0.1:5557", block_size=16)],
    ],
)
def test_every_form_of_one_rank(answer):
    assert (worker(),) == vllm(answer)


def test_an_engine_without_events_has_no_workers():
    off = {"0": {"publisher": "null", "endpoint": "tcp://*:5557"}, "1": {"enable_kv_cache_events": False}}
    assert ((), (), ()) == (vllm([]), vllm({"sources": []}), vllm(off))


@pytest.mark.parametrize(
    "answer",
    [
        [source(1, "tcp://*:5558", "tcp://*:5658"), source(0, "tcp://*:5557", "tcp://*:5657")],
        # What the publisher was told, before every rank adds itself to it.
        {str(rank): {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"} for rank in (0, 1)},
    ],
)
def test_ranks_in_a_row_are_one_worker(answer):
    assert (worker(replay="tcp://10.0.0.1:5657", ranks=(0, 1)),) == vllm(answer)


def test_g13_ranks_on_ports_of_the_systems_choice_are_workers_of_their_own():
    """Each serves one data-parallel rank of the group, at a port such that port + rank is where it is."""
    found = vllm([source(0, "tcp://*:41002", "tcp://*:50000"), source(1, "tcp://*:41001", "tcp://*:50009")])
    assert (
        worker("e.0", "tcp://10.0.0.1:41002", "tcp://10.0.0.1:50000", (0,)),
        worker("e.1", "tcp://10.0.0.1:41000", "tcp://10.0.0.1:50008", (1,)),
    ) == found
    for each in found:
        assert [] == list(each.problems("e", "r"))


def test_a_rank_alone_that_is_not_the_first_is_declared():
    assert (worker(endpoint="tcp://10.0.0.1:5555", ranks=(2,)),) == vllm([source(2)])


def test_the_host_that_was_asked_stands_for_a_wildcard():
    assert "tcp://[fd00::1]:5557" == vllm([source()], "fd00::1")[0].endpoint


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (5, "neither a list of sources nor a map"),
        ({"detail": "Not Found"}, "a source is no JSON object"),
        ([5], "a source is no JSON object"),
        ([{}], "a source has no endpoint"),
        ([source(endpoint="tcp://*:0")], "does not say which port"),
        ([source(endpoint="nonsense")], "an endpoint begins with"),
        ([source(rank="x")], "is no data-parallel rank"),
        ([source(rank=True)], "is no data-parallel rank"),
        ([source(rank=-1)], "is no data-parallel rank"),
        ([source(), source()], "two sources are of one rank"),
        ([source(0), source(9, "tcp://*:5")], "leaves none for rank 0"),
        ([source(replay=7)], "a source has no endpoint"),
        ([source(endpoint="inproc://x")], "only the engine itself"),
        ([source()] * 5000, "more than 4096 sources"),
    ],
)
def test_an_answer_that_says_nothing_is_refused(answer, reason):
    with pytest.raises(AnswerError, match=reason):
        vllm(answer)


def described(**changes):
    base = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "", "block_size": 16}
    return {"version": "0.5.23", "kv_events": {**base, "dp_size": 1, **changes}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, worker()),
        ({"endpoint_host": "0.0.0.0"}, worker()),
        ({"endpoint_host": "::"}, worker()),
        ({"endpoint_host": "10.0.0.9"}, worker(endpoint="tcp://10.0.0.9:5557")),
        ({"dp_size": 3}, worker(ranks=(0, 1, 2))),
        ({"replay_endpoint_port_base": 6557}, worker(replay="tcp://10.0.0.1:6557")),
        ({"load_endpoint_port_base": 6000, "load_topic": "load"}, worker()),
    ],
)
def test_sglang_says_base_ports(changes, expected):
    assert (expected,) == sglang_workers(described(**changes), "e", "10.0.0.1", "g")


@pytest.mark.parametrize("answer", [{}, {"kv_events": None}, described(publisher="null"), {"kv_events": {}}])
def test_sglang_without_events_has_no_workers(answer):
    assert () == sglang_workers(answer, "e", "h", "g")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ([], "no JSON object"),
        ({"kv_events": 5}, "kv_events is no JSON object"),
        (described(publisher="kafka"), "only zmq can be heard"),
        (described(dp_size=0), "dp_size is no number of ranks"),
        (described(dp_size="2"), "dp_size is no number of ranks"),
        (described(endpoint_port_base=None), "endpoint_host or endpoint_port_base is missing"),
        (described(endpoint_port_base=70_000), "past 65535"),
        (described(publisher=[]), "only zmq can be heard"),
        (described(endpoint_host=5), "endpoint_host or endpoint_port_base is missing"),
        (described(replay_endpoint_port_base=0), "does not say which port"),
    ],
)
def test_sglang_may_answer_nonsense(answer, reason):
    with pytest.raises(AnswerError, match=reason):
        sglang_workers(answer, "e", "10.0.0.1", "g")


WORDS = st.sampled_from(
    [
        "sources",
        "endpoint",
        "replay_endpoint",
        "data_parallel_rank",
        "publisher",
        "kv_events",
        "endpoint_host",
        "endpoint_port_base",
        "dp_size",
        "zmq",
        "null",
        "0",
        "1",
        "tcp://*:5557",
        "bind:tcp://h:1",
        "ipc:///x",
        "*",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 70_000) | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=6),
    max_leaves=20,
)


@given(JSON)
def test_any_answer_is_workers_or_a_reason(answer):
    """A server that is something else altogether must not end the thread that looks."""
    for read in (vllm_workers, sglang_workers):
        try:
            workers = read(answer, "e", "10.0.0.1", "g")
        except AnswerError:
            continue
        for each in workers:
            assert [] == list(each.problems("endpoint", "replay"))
            assert not each.endpoint.startswith("bind:")
