"""A stream whose follower was another process before: what was missed is asked for, and a restart meanwhile is noticed."""

from __future__ import annotations

import pytest

from kvbus.errors import UsageError
from kvbus.streams.sequence import KEPT_WHOLE_BYTES
from tests.streams.playbook import Play, batch


def resumed(position: int, witness: int | None, life: int = 0) -> Play:
    """A play that begins where another ended."""
    play = Play()
    play.receiver.resume(position, None if witness is None else (witness, batch(witness, life)))
    return play


def test_what_was_missed_is_asked_for_from_the_witness() -> None:
    """The worker went on while nobody listened; live batches wait until the hole is filled."""
    play = resumed(5, 4)
    assert b"" == play.receiver.expected
    assert [] == play.live(8)
    assert ["ask 4"] == play.up()
    expected = ["drop 4 duplicate", "deliver 5", "deliver 6", "deliver 7", "deliver 8"]
    assert expected == play.replay(4, 5, 6, 7, end=True)
    assert ["deliver 9"] == play.live(9)


def test_nothing_was_missed() -> None:
    """The next live batch is the one wanted, and still nobody knows whose it is before the witness has been compared."""
    play = resumed(5, 4)
    play.up()
    assert [] == play.live(5)
    assert ["deliver 5", "drop 4 duplicate"] == play.replay(4, end=True)


@pytest.mark.parametrize("seqs", [(4, 5), (5, 6), ()])
def test_s4_a_worker_that_restarted_meanwhile_is_a_new_epoch(seqs: tuple[int, ...]) -> None:
    """Other bytes, a later number, or the end mark in place of the witness: its blocks are not what they were."""
    play = resumed(5, 4)
    play.up()
    lines = play.replay(*seqs[:1], life=1) or play.end()
    assert lines[0].startswith("epoch after 5")
    assert "ask 0" == lines[-1]


def test_an_older_witness_after_a_loss() -> None:
    """The last number delivered may lie below a declared loss."""
    play = resumed(9, 4)
    assert ["ask 4"] == play.up()
    assert ["drop 4 duplicate", "drop 8 duplicate", "deliver 9"] == play.replay(4, 8, 9, end=True)


def test_a_worker_that_stays_silent_is_a_loss() -> None:
    """Nobody can say what happened while we were away, so it counts as lost."""
    play = resumed(5, 4)
    play.up()
    assert any(line.startswith("lost 5-5 unverified") for line in play.wait(60_000))


def test_nothing_had_been_delivered() -> None:
    """A stream that had only just been seen begins from its beginning."""
    play = resumed(0, None)
    assert ["ask 0"] == play.up()
    assert ["deliver 0"] == play.replay(0, end=True)


def test_a_large_witness_is_compared_too() -> None:
    """Of large payloads a hash is remembered, which means nothing to another process, so the bytes are what is kept."""
    play, large = Play(), b"0/4" + bytes(KEPT_WHOLE_BYTES)
    play.receiver.resume(5, (4, large))
    play.up()
    assert ["drop 4 duplicate"] == play.told(play.receiver.receive_replay(4, large, play.now, play.request))
    assert [] == play.end()
    assert not play.receiver.is_recovering


def test_without_a_replay_endpoint_there_is_no_way_to_resume() -> None:
    """The caller has to declare a loss."""
    with pytest.raises(UsageError):
        Play(can_replay=False).receiver.resume(5, (4, batch(4)))
