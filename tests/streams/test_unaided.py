"""Without a replay endpoint: a gap is a loss, and a number that goes back is a restart or a second publisher."""

import random

from kvbus.streams.outputs import Deliver, Lost, NewEpoch, StreamOutput
from kvbus.streams.receiver import StreamReceiver
from tests.streams.playbook import MS, Play


def test_gap_is_lost_at_once() -> None:
    """Nobody can be asked, and ZeroMQ never reorders: waiting would bring nothing."""
    play = Play(can_replay=False)
    assert ["deliver 0", "lost 1-4 no_replay", "deliver 4"] == play.live(0, 4)
    assert 0 == play.receiver.held_count


def test_what_went_before_the_first_batch_cannot_be_had() -> None:
    """It voids what is pending, though there is nothing to clear."""
    play = Play(can_replay=False)
    assert ["lost 0-7 joined_late before first", "deliver 7"] == play.live(7)


def test_joined_live_it_begins_where_it_stands() -> None:
    """Without loss."""
    assert ["deliver 7", "lost 8-9 no_replay", "deliver 9"] == Play(can_replay=False, first_contact="live").live(7, 9)


def test_same_bytes_are_a_duplicate() -> None:
    """Two paths to one publisher."""
    play = Play(can_replay=False)
    assert ["deliver 0", "deliver 1", "drop 0 duplicate", "drop 1 duplicate", "deliver 2"] == play.live(0, 1, 0, 1, 2)


def test_g30_restart_of_a_silent_publisher_is_noticed_at_once() -> None:
    """Watermark 100, then 0."""
    play = Play(can_replay=False)
    play.live(*range(101))
    play.wait(1000)
    assert ["epoch after 101 went_back", "deliver 0 of life 1"] == play.live(0, life=1)


def test_restart_after_a_broken_connection_is_noticed_at_once() -> None:
    """The monitor saw it go, so there is no second publisher to think of."""
    play = Play(can_replay=False)
    play.live(0, 1)
    assert [] == [*play.down(), *play.up()]
    assert ["epoch after 2 went_back", "deliver 0 of life 1"] == play.live(0, life=1)


def test_restart_whose_first_numbers_were_lost() -> None:
    """The new epoch begins with what is known of it."""
    play = Play(can_replay=False)
    play.live(*range(10))
    play.wait(1000)
    assert ["epoch after 10 went_back", "lost 0-3 joined_late before first", "deliver 3 of life 1"] == play.live(
        3, life=1
    )


def test_quick_restart_is_known_when_the_old_run_is_not_continued() -> None:
    """Within the contest time the new batches wait; then they are delivered in order, after the new epoch."""
    play = Play(can_replay=False)
    play.live(*range(10))
    assert ["conflict 0"] == play.live(0, life=1)
    assert [] == play.live(1, 3, life=1)
    assert (3, b"", True) == (play.receiver.held_count, play.receiver.expected, play.receiver.is_recovering)
    lines = play.wait(1000)
    delivered = ["deliver 0 of life 1", "deliver 1 of life 1", "lost 2-3 no_replay", "deliver 3 of life 1"]
    assert ["epoch after 10 went_back", *delivered] == lines
    assert ["deliver 4 of life 1"] == play.live(4, life=1)


def test_second_publisher_is_refused_once_the_first_goes_on() -> None:
    """One number with other bytes: an alarm at once, batches refused, and a declared loss, since either may be the right one."""
    play = Play(can_replay=False)
    play.live(*range(5))
    assert ["conflict 0"] == play.live(0, 1, life=7)
    assert ["drop 0 conflict", "drop 1 conflict", "lost 5-5 conflict", "deliver 5"] == play.live(5)
    assert ["deliver 6"] == play.live(6)


def test_second_publisher_far_below_is_told_when_the_first_goes_on() -> None:
    """The bytes of its numbers are no longer remembered, so the alarm waits for proof."""
    play = Play(can_replay=False)
    play.live(*range(100))
    assert [] == play.live(3, life=7)
    assert ["conflict 3", "drop 3 conflict", "lost 100-100 conflict", "deliver 100"] == play.live(100)


def test_contest_is_bounded() -> None:
    """With no room left it is a restart, which is the safe reading."""
    play = Play(can_replay=False, limits={"hold_batches": 3})
    play.live(*range(10))
    lines = play.live(0, 1, 2, life=1)
    assert ["conflict 0", "epoch after 10 went_back", *(f"deliver {seq} of life 1" for seq in range(3))] == lines
    play = Play(can_replay=False, limits={"hold_bytes": 6})
    play.live(*range(10))
    assert "epoch after 10 went_back" in play.live(0, 1, life=1)


def test_newcomer_that_goes_back_itself_begins_its_run_anew() -> None:
    """A third publisher, or a second restart: only the last run can be the next life."""
    play = Play(can_replay=False)
    play.live(*range(5))
    play.live(2, 3, life=1)
    assert ["drop 2 conflict", "drop 3 conflict"] == play.live(0, life=2)
    assert ["epoch after 5 went_back", "deliver 0 of life 2"] == play.wait(1000)


def test_unreadable_batches_are_declared_in_a_contest_too() -> None:
    """They take part without their bytes."""
    play = Play(can_replay=False)
    play.live(*range(100))
    assert [] == play.live(0, life=1)
    play.told(play.receiver.unreadable(100, play.now))
    play.wait(2000)
    assert ["deliver 102"] == play.live(101, 102)[-1:]


class Listener:
    """Follows the outputs of a stream that two publishers share, and remembers a switch that has not been declared."""

    def __init__(self) -> None:
        self.position = 0
        self.speaker: str | None = None
        self.replaced: str | None = None
        self.switches = 0

    def look(self, outputs: list[StreamOutput]) -> None:
        """Check order and tiling, and note switches."""
        for output in outputs:
            if isinstance(output, Lost):
                assert self.position == output.start_seq <= output.stop_seq
                self.position = output.stop_seq
                self.speaker = self.replaced = None
            elif isinstance(output, NewEpoch):
                self.position = 0
                self.speaker = self.replaced = None
            elif isinstance(output, Deliver):
                assert self.position == output.seq
                self.position += 1
                name = output.payload[:1].decode()
                if self.speaker not in (None, name):
                    self.replaced = self.speaker
                    self.switches += 1
                self.speaker = name


def test_two_publishers_on_one_stream_are_never_silent() -> None:
    """A switch that nobody can see when it happens is declared within a second of the next word of the one it replaced."""
    switches = 0
    for seed in range(60):
        rng = random.Random(seed)
        receiver, listener = StreamReceiver(can_replay=False, rng=rng), Listener()
        numbers = {"a": 0, "b": rng.choice((0, 0, 3))}
        now, due = 0, None
        for _ in range(60):
            name, replaced, before = rng.choice("ab"), listener.replaced, listener.switches
            listener.look(receiver.receive(numbers[name], b"%s/%d" % (name.encode(), numbers[name]), now))
            numbers[name] += 1
            if name == replaced and due is None:
                due = now + 1000 * MS
            now += rng.choice((0, 1, 100, 700)) * MS
            listener.look(receiver.on_time(now))
            if listener.switches != before:
                due = None
            assert listener.replaced is None or due is None or now < due, f"seed {seed}"
            due = due if listener.replaced else None
        switches += listener.switches
    assert switches > 50
