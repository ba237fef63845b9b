"""Whether the live socket brings the life that is followed."""

from kvbus.streams.proof import LiveProof
from kvbus.streams.sequence import KEPT_WHOLE_BYTES, REMEMBERED, Witness


def test_a_batch_with_the_same_bytes_vouches_for_all_that_came_after_it() -> None:
    """Lives follow each other within a connection."""
    proof = LiveProof()
    proof.revoke()
    for seq in (7, 8, 9):
        proof.add(seq, b"%d" % seq)
    assert proof.vouch(8, b"other") is None
    assert proof.vouch(6, b"6") is None
    assert [(9, b"9")] == proof.vouch(8, b"8")
    assert proof.is_proven
    assert proof.vouch(9, b"9") is None


def test_what_went_back_afterwards_is_of_yet_another_life() -> None:
    """Only numbers that ascend are of the same one."""
    proof = LiveProof()
    proof.revoke()
    for seq in (7, 8, 3, 9):
        proof.add(seq, b"%d" % seq)
    assert [(8, b"8"), (9, b"9")] == proof.vouch(7, b"7")


def test_no_more_is_remembered_than_fits() -> None:
    """The newest; and of a large one only what compares it."""
    proof = LiveProof()
    proof.revoke()
    large = b"x" * (KEPT_WHOLE_BYTES + 1)
    for seq in range(REMEMBERED):
        proof.add(seq, b"%d" % seq)
    proof.add(REMEMBERED, large)
    assert proof.vouch(0, b"0") is None
    assert [(REMEMBERED - 1, b"63")] == proof.vouch(REMEMBERED - 2, b"62")


def test_a_new_doubt_forgets_everything() -> None:
    """What came before it proves nothing any more."""
    proof = LiveProof()
    proof.revoke()
    proof.add(1, b"1")
    proof.candidate = Witness(1, b"1")
    proof.revoke()
    assert proof.vouch(1, b"1") is None
    assert (None, False) == (proof.candidate, proof.is_proven)


def test_the_batch_that_was_asked_about_vouches_though_more_has_come_than_is_remembered() -> None:
    """Else a live socket that is further ahead of the answers than that would never be trusted."""
    proof = LiveProof()
    proof.revoke()
    proof.add(7, b"7")
    proof.candidate = Witness(7, b"7")
    for seq in range(8, 8 + 2 * REMEMBERED):
        proof.add(seq, b"%d" % seq)
    assert proof.vouch(7, b"other") is None
    assert proof.vouch(8, b"8") is None
    last = 7 + 2 * REMEMBERED
    assert [(seq, b"%d" % seq) for seq in range(last - REMEMBERED + 1, last + 1)] == proof.vouch(7, b"7")
    assert proof.is_proven


def test_a_number_that_came_again_with_other_bytes_is_not_vouched_for_by_the_older_one() -> None:
    """What is remembered under it now belongs to yet another life."""
    proof = LiveProof()
    proof.revoke()
    proof.add(7, b"7")
    proof.candidate = Witness(7, b"7")
    proof.add(7, b"seven")
    assert proof.vouch(7, b"7") is None
