"""The judge of the broker: each broken promise is seen."""

import pytest

from kvbus.broker.node import BrokerNode
from kvbus.broker.notices import Notice
from kvbus.events import BlockRemoved, BlockStored, EventBatch
from kvbus.sim.broker_judge import BrokerJudge
from kvbus.sim.truth import Block
from kvbus.sim.violation import ViolationError
from kvbus.views.config import ViewConfig
from kvbus.views.filters import EventFilter
from kvbus.wire.codec import encode_batch
from kvbus.wire.frames import live_message
from tests.sim.bench import VIEW, Bench, worker_plan

X, Y = BlockStored([1], medium="GPU"), BlockStored([2], medium="CPU")


class Court:
    """A broker with two workers that have said things, and its judge; what the broker sends is made up."""

    def __init__(self, said: dict[str, list], replay: str | None = "fair", wanted: EventFilter | None = None) -> None:
        filtered = () if wanted is None else (ViewConfig(name="w", endpoint="inproc://w", filter=wanted),)
        self.bench = Bench(worker_plan("a0", replay), worker_plan("a1", replay), views=(VIEW, *filtered))
        self.bench.start()
        self.judge = BrokerJudge(self.bench.plan, self.bench.workers)
        self.judge.begin_life(self.bench.broker.node)
        for worker in self.bench.workers:
            worker.publish(said[worker.plan.worker_id])
        self.bench.run()
        self.seqs = [0, 0]

    @property
    def node(self) -> BrokerNode:
        return self.bench.broker.node

    def sends(self, *events, view: int = 0) -> None:
        frames = live_message(b"out", self.seqs[view], encode_batch(EventBatch(1.0, list(events), 0)))
        self.seqs[view] += 1
        self.judge.note_output(view, frames)


def test_what_all_have_said_may_go_out() -> None:
    """As often as each has said it."""
    court = Court({"a0": [X, X], "a1": [X, X]})
    court.sends(X)
    court.sends(X)
    court.judge.judge_turn()
    court.judge.judge_truth()
    with pytest.raises(ViolationError, match="quorum did not say"):
        court.sends(X)


def test_what_one_has_not_said_may_not_go_out() -> None:
    """However often the other has."""
    with pytest.raises(ViolationError, match="quorum did not say"):
        Court({"a0": [X, X], "a1": [Y]}).sends(X)


def test_a_filtered_view_sends_what_passes_and_all_of_it() -> None:
    """Invariant 5."""
    court = Court({"a0": [X, Y], "a1": [X, Y]}, wanted=EventFilter(medium="CPU"))
    court.sends(X, Y)
    court.sends(Y, view=1)
    court.judge.judge_turn()
    with pytest.raises(ViolationError, match="passes its filter"):
        court.sends(X, view=1)
    court = Court({"a0": [X, Y], "a1": [X, Y]}, wanted=EventFilter(medium="CPU"))
    court.sends(X, Y)
    with pytest.raises(ViolationError, match="misses nothing"):
        court.judge.judge_turn()


def test_at_rest_no_block_is_announced_that_a_worker_lacks() -> None:
    """Whatever was right when it went out."""
    court = Court({"a0": [X], "a1": [X]})
    court.sends(X)
    court.judge.judge_truth()
    court.bench.workers[1].publish([BlockRemoved([1], "GPU")])
    court.bench.run()
    with pytest.raises(ViolationError, match="a1 lacks"):
        court.judge.judge_truth()


def test_at_rest_what_all_hold_is_announced() -> None:
    """What came up after the faults has no excuse."""
    court = Court({"a0": [X], "a1": [X]})
    fresh = {("a", 0): {Block(0, "GPU", None, None, None, 1)}}
    with pytest.raises(ViolationError, match="what all workers hold"):
        court.judge.judge_fresh(fresh)
    court.sends(X)
    assert 1 == court.judge.judge_fresh(fresh)


def test_at_rest_a_stream_has_everything() -> None:
    """A number that was sent and never came is seen."""
    court = Court({"a0": [X], "a1": [X]})
    court.sends(X)
    court.judge.judge_streams(replayed_only=False)
    court.judge.judge_accounts()
    court.bench.workers[0].truth.sent_stop += 1
    with pytest.raises(ViolationError, match="a stream has everything"):
        court.judge.judge_streams(replayed_only=False)


def test_a_batch_that_is_counted_twice_is_seen() -> None:
    """No worker can have said less than was received of it."""
    court = Court({"a0": [X], "a1": [X]})
    court.bench.workers[0].truth.said_count = 0
    with pytest.raises(ViolationError, match="counted twice"):
        court.judge.judge_accounts()


def test_a_restart_that_nobody_could_notice_is_forgiven() -> None:
    """Without a replay endpoint, where the new life's first number seen is the one wanted (S4)."""
    court = Court({"a0": [X], "a1": [X]}, replay=None)
    court.sends(X)
    for worker in court.bench.workers:
        (payload,) = worker.truth.life_of
        court.judge.note_live(0, live_message(b"", 0, payload))
        worker.kill()
        worker.start()
        worker.truth.life_of[b"new"] = 2
        court.judge.note_live(0, live_message(b"", 1, b"new"))
    court.judge.judge_truth()
    assert 2 == court.judge.counts["restart that nobody could notice"]


def test_notices_are_counted_by_reason() -> None:
    """For the coverage."""
    court = Court({"a0": [X], "a1": [X]})
    court.judge.note_notice(_lost("silent", 0, 1))
    assert 1 == court.judge.counts["batches_lost: silent"]


def test_what_a_worker_still_keeps_is_not_lost() -> None:
    """Unless it was never published, or has been let go."""
    court = Court({"a0": [X], "a1": [X]})
    court.judge.note_notice(_lost("absent", 1, 3))
    with pytest.raises(ViolationError, match="leaves nothing out"):
        court.judge.note_notice(_lost("evicted", 0, 1))


def _lost(reason: str, start_seq: int, stop_seq: int) -> Notice:
    fields = {"worker": "a0", "rank": 0, "start_seq": start_seq, "stop_seq": stop_seq, "reason": reason}
    return Notice("warning", "batches_lost", fields)


def test_a_view_that_falls_silent_is_seen() -> None:
    """One that has never spoken may be silent (V5)."""
    court = Court({"a0": [X], "a1": [X]})
    court.judge.judge_beats(court.judge.batches_said())
    court.sends(X)
    said = court.judge.batches_said()
    with pytest.raises(ViolationError, match="shows that it is alive"):
        court.judge.judge_beats(said)
    court.sends()
    court.judge.judge_beats(said)


def test_who_joins_has_a_say_from_the_next_turn_on() -> None:
    """In the turn itself what goes out may have been agreed on before."""
    court = Court({"a0": [X, Y, X], "a1": []})
    court.sends()
    court.judge.judge_turn()
    court.judge._quorums = {key: ["a0"] for key in court.judge._quorums}
    court.sends(X)
    court.sends(Y)
    court.judge.judge_turn()
    with pytest.raises(ViolationError, match="quorum did not say"):
        court.sends(X)
