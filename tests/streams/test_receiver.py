"""The receiver as a whole: the fast path, first contact, and the cases of the field."""

import random

import pytest

from kvbus.errors import UsageError
from kvbus.streams.outputs import Deliver, Dropped, Lost
from kvbus.streams.receiver import StreamReceiver
from kvbus.wire.frames import END_SEQ
from tests.streams.playbook import Play, batch


def test_normal_running_needs_one_comparison_a_message() -> None:
    """The broker's fast path: `expected` names the next number, and each acceptance moves it on."""
    receiver = StreamReceiver(can_replay=True, rng=random.Random(1))
    for seq in range(300):
        assert seq.to_bytes(8, "big") == receiver.expected
        receiver.accept_expected(batch(seq), seq)
    assert (300, False, 0) == (receiver.position, receiver.is_recovering, receiver.held_count)


def test_fast_path_and_slow_path_are_one() -> None:
    """The slow path takes the next number just as well, and remembers what the fast one took."""
    play = Play()
    play.live(0)
    assert [Deliver(1, batch(1))] == play.receiver.receive(1, batch(1), 0)
    assert ["drop 0 duplicate", "drop 1 duplicate"] == play.live(0, 1) or play.live(0, 1)
    assert ["deliver 2"] == play.live(2)


def test_fast_path_is_closed_while_anything_is_open() -> None:
    """A hole, a doubt, a first contact: no message may pass without thought."""
    play = Play()
    play.live(0, 2)
    assert b"" == play.receiver.expected
    play.replay(0, 1, end=True)
    assert (3).to_bytes(8, "big") == play.receiver.expected
    play.down()
    assert b"" == play.receiver.expected
    assert b"" == Play(first_contact="live").receiver.expected


def test_numbers_at_their_upper_end_are_no_way_out() -> None:
    """A hostile number near 2⁶⁴ must neither raise nor make the end mark the number expected."""
    play = Play(can_replay=False)
    play.live(END_SEQ - 2, END_SEQ - 1)
    assert (END_SEQ, b"") == (play.receiver.position, play.receiver.expected)
    assert ["conflict 0"] != play.live(0)
    for seq in (-1, END_SEQ):
        for call in (play.receiver.receive, play.receiver.receive_replay):
            with pytest.raises(UsageError):
                call(seq, b"", 0)
        with pytest.raises(UsageError):
            play.receiver.unreadable(seq, 0)
    with pytest.raises(UsageError):
        StreamReceiver(can_replay=True, rng=random.Random(1), start_seq=END_SEQ)


def test_jump_to_a_hostile_number_heals() -> None:
    """One corrupt number is a huge declared loss; the next true ones bring the stream back through a new epoch."""
    play = Play()
    play.live(0, 1)
    assert ["ask 1"] == play.live(2**63)
    assert ["drop 1 duplicate", "ask 1"] == play.replay(1, end=True)
    assert ["drop 1 duplicate", "lost 2-9223372036854775808 absent", "deliver 9223372036854775808"] == play.replay(
        1, end=True
    )
    assert ["drop 2 unproven", "ask 9223372036854775808"] == play.live(2)
    assert ["epoch after 9223372036854775809 missing", "ask 0"] == play.end()
    assert ["deliver 0", "deliver 1", "deliver 2"] == play.replay(0, 1, 2, end=True)
    assert ["drop 3 unproven", "ask 2"] == play.live(3)
    assert ["drop 2 duplicate", "deliver 3"] == play.replay(2, 3, end=True)
    assert ["deliver 4"] == play.live(4)


def test_g19_each_stream_has_its_own_watermark() -> None:
    """Two publishers behind one socket: no false gap, no false restart."""
    plays = (Play(), Play())
    assert ["deliver 0", "deliver 0", "deliver 1", "deliver 1"] == [
        said for seq in (0, 1) for play in plays for said in play.live(seq)
    ]


def test_g24_live_batches_wait_for_the_hole_in_front_of_them() -> None:
    """A store must not revive what a later removal took."""
    play = Play()
    play.live(*range(5))
    assert ["ask 4"] == play.live(6)
    assert [] == play.live(7)
    assert ["drop 4 duplicate", "deliver 5", "deliver 6", "deliver 7"] == play.replay(4, 5)


def test_g24_a_hole_given_up_is_declared_before_what_follows() -> None:
    """When the replay never answers: the gap first, then batch 6."""
    play = Play()
    play.live(*range(5))
    play.live(6)
    lines = play.wait(20_000)
    assert ["lost 5-6 silent", "deliver 6"] == [said for said in lines if said[:3] in ("los", "del")]


def test_g27_replay_that_overlaps_live_traffic_delivers_each_batch_once() -> None:
    """Gap 3-5; live 6 and 7 arrive meanwhile and the replay brings them too."""
    play = Play()
    play.live(0, 1, 2)
    lines = [*play.live(6), *play.replay(2, 3), *play.live(7), *play.replay(4, 5, 6, 7, end=True), *play.live(8)]
    assert [f"deliver {seq}" for seq in range(3, 9)] == [said for said in lines if "deliver" in said]


def test_g29_a_batch_counts_once_however_often_it_comes() -> None:
    """Statistics count a (stream, number) once: the rest are duplicates by name."""
    play = Play()
    play.live(0, 1)
    play.up()
    assert ["drop 1 duplicate", "deliver 2"] == play.replay(1, 2, end=True)
    assert ["drop 2 duplicate", "deliver 3"] == play.live(2, 3)


@pytest.mark.parametrize("can_replay", [False, True])
def test_g30_number_that_goes_back_is_a_restart_in_both_modes(can_replay: bool) -> None:
    """Engine restarted in place; with and without a replay endpoint the old blocks must go before the new ones come."""
    play = Play(can_replay=can_replay)
    play.live(*range(101))
    play.wait(3000)
    lines = play.live(0, life=1)
    if can_replay:
        assert ["drop 0 unproven", "ask 100"] == lines
        lines = [*play.end(), *play.replay(0, life=1, end=True)]
        assert ["epoch after 101 missing", "ask 0", "deliver 0 of life 1"] == lines
        assert ["drop 1 unproven", "ask 0"] == play.live(1, life=1)
        assert ["drop 0 duplicate", "deliver 1 of life 1"] == play.replay(0, 1, life=1, end=True)
    else:
        assert ["epoch after 101 went_back", "deliver 0 of life 1", "deliver 1 of life 1"] == [
            *lines,
            *play.live(1, life=1),
        ]
    assert ["deliver 2 of life 1"] == play.live(2, life=1)


def test_g35_replay_that_begins_later_is_a_declared_loss() -> None:
    """The client can tell, and goes on."""
    play = Play()
    assert ["ask 0"] == play.live(100)
    assert ["lost 0-90 evicted before first", "deliver 90"] == play.replay(90)
    lines = play.replay(*range(91, 101), end=True)
    assert [f"deliver {seq}" for seq in range(91, 101)] == lines


def test_g38_first_number_above_zero_is_a_gap_from_zero() -> None:
    """The earlier batches are fetched, in order, before the first live one."""
    play = Play()
    assert ["ask 0"] == play.live(7)
    assert [f"deliver {seq}" for seq in range(8)] == play.replay(*range(7), end=True)


def test_g38_is_an_option() -> None:
    """Joined live, the stream begins where it stands, without loss; later gaps are gaps."""
    play = Play(first_contact="live")
    assert play.receiver.position is None
    assert [] == play.up()
    assert ["deliver 7", "deliver 8", "ask 8"] == play.live(7, 8, 10)


def test_stream_whose_replay_begins_at_one_has_no_hole_at_zero() -> None:
    """Some producers count from 1."""
    play = Play()
    assert ["ask 0"] == play.live(1)
    assert ["deliver 1", "drop 1 duplicate"] == play.replay(1, end=True)
    assert ["deliver 2"] == play.live(2)


def test_start_in_the_middle_is_asked_for_from_there() -> None:
    """`--from N`: nothing older is delivered, and what lies between N and the live stream is a gap."""
    play = Play(start_seq=50)
    assert ["ask 50"] == play.up()
    assert ["drop 49 duplicate", "deliver 50"] == play.live(49, 50)


def test_idle_publisher_is_asked_at_first_contact() -> None:
    """What was published before we came shows up although nothing comes live."""
    play = Play()
    assert ["ask 0"] == play.up()
    assert ["deliver 0", "deliver 1"] == play.replay(0, 1, end=True)
    assert ["deliver 2"] == play.live(2)


def test_unreadable_batch_is_a_declared_hole_and_not_asked_for() -> None:
    """W3: the bytes would be the same. Before delivery and after it, next in line and ahead."""
    play = Play()
    play.live(0)
    assert [Lost(1, 2, "unreadable")] == play.receiver.unreadable(1, 0)
    assert ["deliver 2"] == play.live(2)
    assert [Lost(2, 3, "unreadable")] == play.receiver.unreadable(2, 0)
    assert ["ask 2"] == play.told(play.receiver.unreadable(4, 0))
    assert ["drop 2 duplicate", "deliver 3", "lost 4-5 unreadable", "drop 4 duplicate"] == play.replay(
        2, 3, 4, end=True
    )
    assert ["deliver 5"] == play.live(5)


def test_unreadable_batch_of_a_replay_is_a_declared_hole_in_its_place() -> None:
    """W3: it must not pass for a number that went back, which would raise an alarm about a second publisher."""
    play = Play()
    play.live(0)
    play.live(3)
    receiver = play.receiver
    assert ["drop 0 duplicate"] == play.replay(0)
    assert ["lost 1-2 unreadable"] == play.told(receiver.receive_replay(1, None, 0, play.request))
    assert ["deliver 2", "deliver 3", "drop 3 duplicate"] == play.replay(2, 3, end=True)
    assert ["deliver 4"] == play.live(4)


def test_unreadable_first_batch_of_a_replay_is_no_stream_that_begins_at_one() -> None:
    """What was in it is lost, so that it must be declared."""
    play = Play()
    play.up()
    assert ["lost 0-1 unreadable before first"] == play.told(play.receiver.receive_replay(0, None, 0, play.request))
    assert ["deliver 1"] == play.replay(1, end=True)


def test_unreadable_batch_under_a_number_that_was_delivered_is_another_life() -> None:
    """Its bytes cannot be those of a batch that could be read."""
    play = Play()
    play.live(0, 1)
    play.up()
    assert ["epoch after 2 changed", "cancel", "ask 0"] == play.told(
        play.receiver.receive_replay(1, None, 0, play.request)
    )


def test_replies_without_a_request_are_dropped() -> None:
    """Late ones of an abandoned request, and any at all on a stream without an endpoint."""
    play = Play()
    play.live(0, 2)
    late = play.request
    play.wait(1100)
    assert [Dropped("stale_replay", 1)] == play.receiver.receive_replay(1, batch(1), play.now, late)
    assert [] == play.receiver.receive_end(play.now, late)
    deaf = StreamReceiver(can_replay=False, rng=random.Random(1))
    assert [Dropped("stale_replay", 1)] == deaf.receive_replay(1, b"", 0)
    assert [] == deaf.receive_end(0)


def test_caller_may_put_a_request_off() -> None:
    """A bounded number of recoveries in all is the caller's: it says that it has no connection to spare, and is asked again."""
    play = Play()
    play.live(0, 2)
    play.receiver.deferred(play.now)
    assert not play.receiver.is_asking
    assert ["ask 0"] == play.wait(50)
    assert play.receiver.is_asking


def test_nothing_is_due_on_a_stream_without_replay() -> None:
    """No timer runs without a reason."""
    play = Play(can_replay=False)
    play.live(0, 1)
    assert play.receiver.deadline_ns is None
    assert [] == play.told(play.receiver.on_time(10**18))
    assert play.receiver.silent_since_ns is None


def test_it_is_sated_while_it_waits_for_an_answer_with_half_of_what_it_can_hold() -> None:
    """So that nothing comes for which there is no room; without a replay to wait for, more does no harm."""
    for can_replay in (True, False):
        play = Play(can_replay=can_replay)
        play.live(0)
        half = play.receiver.limits.hold_batches // 2
        play.live(*range(2, 1 + half))
        assert not play.receiver.is_sated
        play.live(1 + half)
        assert can_replay == play.receiver.is_sated
        if can_replay:
            play.replay(1, end=True)
            assert not play.receiver.is_sated
