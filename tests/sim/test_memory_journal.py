"""A journal that survives the death of the pretended broker."""

import random

from kvbus.broker.node import BrokerNode
from kvbus.events import BlockStored, EventBatch
from kvbus.sim.memory_journal import MemoryJournal
from kvbus.wire.codec import encode_batch
from kvbus.wire.frames import live_message, replay_end, replay_reply
from tests.sim.bench import plan_of, worker_plan

CONFIG = plan_of([worker_plan("a0"), worker_plan("a1")]).broker


def make(recorder) -> BrokerNode:
    return BrokerNode(CONFIG, random.Random(1), recorder=recorder)


def say(node: BrokerNode, source: int, seq: int, *hashes: int) -> None:
    payload = encode_batch(EventBatch(1.0 + seq, [BlockStored([each]) for each in hashes], 0))
    node.receive(source, live_message(b"", seq, payload), 1_000 + seq)
    node.on_time(1_000 + seq)
    node.flush()


def seqs(output) -> list[int]:
    return [int.from_bytes(frames[1], "big") for _, frames in output]


def test_a_new_node_goes_on_where_the_last_one_was_committed() -> None:
    """Numbers, votes and positions; whatever moment a checkpoint was taken at, or none."""
    for probability_seed in range(20):
        journal = MemoryJournal(CONFIG, random.Random(probability_seed))
        node = journal.open(make, 0)
        assert "new" == journal.resumption
        committed: list[int] = []
        for seq in range(60):
            say(node, 0, seq, seq)
            committed += seqs(journal.commit(node, 2_000 + seq))
            say(node, 1, seq, seq)
            committed += seqs(journal.commit(node, 2_000 + seq))
            if seq % 7 == 6:
                say(node, 0, seq + 1, 1000 + seq)  # never committed
                node = journal.open(make, 3_000 + seq)
                assert "exact" == journal.resumption
                assert [seq + 1] == sorted({stream.receiver.position for stream in node.streams})
                for source in node.sources:
                    node.connected(source.index, 3_000 + seq)
                for request in node.take_requests():
                    if request.frames:
                        _confirm(node, request, seq)
        assert list(range(60)) == committed


def _confirm(node: BrokerNode, request, seq: int) -> None:
    """Answer a request with the last batch, as the worker does."""
    payload = encode_batch(EventBatch(1.0 + seq, [BlockStored([seq])], 0))
    node.receive_replay(request.key, replay_reply(b"", seq, payload), 3_000 + seq)
    node.receive_replay(request.key, replay_end(), 3_000 + seq)
