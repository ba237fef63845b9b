"""Whether the live socket brings the life that is followed."""

import pytest

from kvbus.streams.proof import LiveProof
from kvbus.streams.sequence import KEPT_WHOLE_BYTES, Witness


def test_a_batch_with_the_same_bytes_vouches_for_all_that_came_after_it() -> None:
    """Lives follow each other within a connection."""
    proof = LiveProof(64, 1 << 20)
    proof.revoke()
    for seq in (7, 8, 9):
        proof.add(seq, b"%d" % seq)
    assert proof.vouch(8, b"other") is None
    assert proof.vouch(6, b"6") is None
    assert [(9, b"9")] == proof.vouch(8, b"8")
    assert proof.is_proven
    assert proof.vouch(9, b"9") is None


def test_what_does_not_follow_may_be_of_another_life() -> None:
    """Two connections of a socket that binds are read in turns; the older one's numbers are higher, or lower."""
    proof = LiveProof(64, 1 << 20)
    proof.revoke()
    for seq in (7, 500, 8, 501, 3, 9, 11):
        proof.add(seq, b"%d" % seq)
    assert [(8, b"8"), (9, b"9")] == proof.vouch(7, b"7")


def test_a_number_that_comes_twice_with_other_bytes_makes_all_before_it_doubtful() -> None:
    """Nobody can tell which of them is of which life."""
    proof = LiveProof(64, 1 << 20)
    proof.revoke()
    for seq in (9, 10):
        proof.add(seq, b"%d" % seq)
    proof.add(10, b"ten")
    proof.add(11, b"11")
    assert (2, 5) == (len(proof), proof.kept_bytes)
    assert proof.vouch(9, b"9") is None
    assert proof.vouch(10, b"10") is None
    assert [] == proof.vouch(11, b"11")


@pytest.mark.parametrize(("batches_max", "bytes_max"), [(4, 1000), (1000, 4)])
def test_no_more_is_kept_than_fits(batches_max: int, bytes_max: int) -> None:
    """The newest, by count and by bytes; one that is larger than all room, alone."""
    proof = LiveProof(batches_max, bytes_max)
    proof.revoke()
    for seq in range(9):
        proof.add(seq, b"%d" % seq)
        assert (min(seq + 1, 4), min(seq + 1, 4)) == (len(proof), proof.kept_bytes)
    assert proof.vouch(4, b"4") is None
    assert [(6, b"6"), (7, b"7"), (8, b"8")] == proof.vouch(5, b"5")
    assert (0, 0) == (len(proof), proof.kept_bytes)
    proof.revoke()
    proof.add(1, b"1")
    proof.add(2, b"x" * 1001)
    assert (1, 1001) == (len(proof), proof.kept_bytes)
    proof.add(2, b"22")
    assert (1, 2) == (len(proof), proof.kept_bytes)


def test_what_a_whole_answer_has_not_brought_is_of_an_older_life_as_is_all_before_it() -> None:
    """So it does not take up the room of what comes."""
    proof = LiveProof(64, 1 << 20)
    proof.revoke()
    proof.add(7, b"7")
    proof.add(8, b"8")
    asked_about = proof.candidate
    for seq in (0, 1):
        proof.add(seq, b"%d" % seq, asked_about)
    assert Witness(8, b"8") == proof.candidate
    proof.renounce()
    assert (None, 2, 2) == (proof.candidate, len(proof), proof.kept_bytes)
    proof.renounce()
    assert [(1, b"1")] == proof.vouch(0, b"0")


def test_a_new_doubt_forgets_everything() -> None:
    """What came before it proves nothing any more."""
    proof = LiveProof(64, 1 << 20)
    proof.revoke()
    proof.add(1, b"1")
    proof.revoke()
    assert proof.vouch(1, b"1") is None
    assert (None, False) == (proof.candidate, proof.is_proven)


def test_the_batch_that_was_asked_about_vouches_though_more_has_come_than_is_kept() -> None:
    """Else a live socket that is further ahead of the answers than that would never be trusted."""
    proof = LiveProof(4, 1 << 20)
    proof.revoke()
    proof.add(7, b"7")
    asked_about = proof.candidate
    for seq in range(8, 18):
        proof.add(seq, b"%d" % seq, asked_about)
    assert proof.vouch(7, b"other") is None
    assert proof.vouch(8, b"8") is None
    assert [] == proof.vouch(7, b"7")
    assert proof.is_proven


def test_the_newest_is_the_next_to_be_asked_about() -> None:
    """Of those that are not asked about yet: an answer cannot bring what is newer than its question."""
    proof = LiveProof(4, 1 << 20)
    proof.revoke()
    for seq in range(3):
        proof.add(seq, b"%d" % seq)
    assert Witness(2, b"2") == proof.candidate
    large = b"x" * (KEPT_WHOLE_BYTES + 1)
    proof.add(3, large)
    assert Witness(3, (len(large), hash(large))) == proof.candidate
    assert [] == proof.vouch(3, large)


def test_a_number_that_came_again_with_other_bytes_is_not_vouched_for_by_the_older_one() -> None:
    """What is remembered under it now belongs to yet another life."""
    proof = LiveProof(64, 1 << 20)
    proof.revoke()
    proof.add(7, b"7")
    proof.add(7, b"seven", proof.candidate)
    assert Witness(7, b"seven") == proof.candidate
    assert proof.vouch(7, b"7") is None
