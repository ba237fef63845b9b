"""Judges what the broker sends: nothing that the quorum did not say, nothing that a filter does not want, and at rest no lie."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from kvbus.broker.node import BrokerNode
from kvbus.broker.notices import Notice
from kvbus.broker.status import WorkerStatus
from kvbus.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, Event
from kvbus.sim.plan import Plan
from kvbus.sim.truth import Belief, Block, Sieve
from kvbus.sim.view_log import SentBatch, ViewLog
from kvbus.sim.violation import require
from kvbus.sim.worker_process import WorkerProcess
from kvbus.streams.receiver import ReceiverLimits

__all__ = ["BrokerJudge"]

GroupKey = tuple[str, int | None]


class BrokerJudge:
    """Watches one broker through its lives.

    Attributes:
        logs: What each view has sent.
        counts: What the broker has told.
        beliefs: What a reader of view 0, which filters nothing, believes, by group.
        losses: Losses and restarts that the broker has told of in this life, as text.
        blind: Groups and ranks in which a worker has restarted in this life of the broker so that nobody could notice.
    """

    def __init__(self, plan: Plan, workers: list[WorkerProcess]) -> None:
        """Prepare.

        Args:
            plan: Of the run.
            workers: All publishers.
        """
        self.logs = [ViewLog() for _ in plan.broker.views]
        self.counts: Counter[str] = Counter()
        self.beliefs: dict[str, Belief] = {}
        self.losses: list[str] = []
        self._plan = plan
        self._workers = workers
        self._publishers: dict[GroupKey, dict[str, WorkerProcess]] = {}
        for worker in workers:
            key = (worker.plan.group, worker.plan.data_parallel_rank)
            self._publishers.setdefault(key, {})[worker.plan.worker_id] = worker
        self._hashes_said: set[BlockHash] = set()

    def begin_life(self, node: BrokerNode) -> None:
        """A new life of the broker begins.

        Args:
            node: Its rules.
        """
        self._node = node
        for log in self.logs:
            log.begin_epoch()
        self.beliefs = {group: Belief() for group, _ in self._publishers}
        self._sieves = [Sieve(view.filter) for view in self._plan.broker.views]
        self._expected: list[deque[tuple[int | None, Event, bool]]] = [deque() for _ in self.logs]
        self._released: Counter[tuple[int | None, bytes]] = Counter()
        self._quorums: dict[GroupKey, list[str]] = {}
        self._quorums_now: dict[GroupKey, list[str]] | None = None
        self._is_quorum_new = False
        self._heard: dict[tuple[int, bytes, int | None], tuple[int, int]] = {}
        self.blind: set[GroupKey] = set()
        self.losses = []
        self._dirty: set[GroupKey] = set()
        self._life_at_start = {worker.name: worker.truth.life for worker in self._workers}
        self._lost: dict[tuple[str, int | None], list[tuple[int, int]]] = {}
        self._restarted: set[str] = set()
        self._rejoined: set[str] = set()

    def resume_life(self, node: BrokerNode) -> None:
        """The broker goes on where it ended, by its journal: what it has said counts on.

        Args:
            node: Its rules.
        """
        self.counts["resumed by its journal"] += 1
        self._node = node
        for log in self.logs:
            log.resume()
        # Streams that nobody can be asked about are joined anew, behind a clear.
        self._heard = {}
        self._restarted |= {worker.plan.worker_id for worker in self._workers if worker.plan.replay == "none"}

    def note_change(self, worker_ids: set[str]) -> None:
        """Note that workers have left the configuration, or have come into it, while the broker runs.

        Who comes is heard from its beginning, also if it was there before, and whatever others have said before counts no more.

        Args:
            worker_ids: Theirs.
        """
        self.counts["configuration changed"] += 1
        self._rejoined |= worker_ids
        self._restarted |= worker_ids
        self._dirty |= {key for key, workers in self._publishers.items() if not worker_ids.isdisjoint(workers)}

    def note_said(self, events: Iterable[Event]) -> None:
        """Note which blocks have been heard of.

        Args:
            events: What a worker says.
        """
        for event in events:
            if isinstance(event, BlockStored | BlockRemoved):
                self._hashes_said.update(event.block_hashes)

    def note_live(self, source_index: int, frames: list[bytes]) -> None:
        """Note a live message that the broker gets, so as to know where nobody could notice a restart.

        Without a replay endpoint a new life whose first number seen happens to be the one wanted passes for the old one (S4).

        Args:
            source_index: Where it arrives.
            frames: The message.
        """
        topic, seq_frame, payload = frames
        seq = int.from_bytes(seq_frame, "big")
        for worker in self._workers:
            life = worker.truth.life_of.get(payload)
            if life is not None:
                plan = worker.plan
                key = (source_index, topic, plan.data_parallel_rank)
                last = self._heard.get(key)
                self._heard[key] = (life, seq)
                if plan.replay == "none" and last is not None and last[0] != life and seq == last[1] + 1:
                    self.counts["restart that nobody could notice"] += 1
                    self.blind.add((plan.group, plan.data_parallel_rank))
                return

    def note_output(self, view_index: int, frames: list[bytes]) -> None:
        """Judge what is published.

        Args:
            view_index: On which view.
            frames: The message.

        Raises:
            ViolationError: It must not be.
        """
        sent = self.logs[view_index].note_live(frames)
        rank = sent.data_parallel_rank
        if view_index:
            expected = self._expected[view_index]
            for event in sent.events:
                while expected and expected[0][2] and expected[0][:2] != (rank, event):
                    expected.popleft()
                wanted = expected.popleft() if expected else None
                require(
                    wanted is not None and wanted[:2] == (rank, event),
                    "a view sends what passes its filter, in order",
                    f"view {view_index}: {(rank, event)} instead of {wanted}",
                )
            return
        group = self._plan.workers[0].group if len(self.beliefs) == 1 else frames[0].decode()
        for number, sieve in enumerate(self._sieves):
            if number and self._plan.broker.views[number].may_carry(group, rank):
                judged = [(event, sieve.judge(event, (group, rank))) for event in sent.events]
                self._expected[number].extend((rank, event, ok is None) for event, ok in judged if ok is not False)
        self._judge_release(group, sent)
        self.beliefs[group].hear(sent.events, rank)

    def note_reply(self, view_index: int, identity: bytes, frames: list[bytes]) -> None:
        """Note what an answer carries.

        Args:
            view_index: Of which view.
            identity: Whom it goes to.
            frames: One reply.

        Raises:
            ViolationError: It leaves something out, or says what was never sent.
        """
        self.logs[view_index].note_reply(identity, frames, self._node.outputs[view_index].oldest_seq)

    def note_notice(self, notice: Notice) -> None:
        """Count what the broker tells.

        Args:
            notice: A line for its log.

        Raises:
            ViolationError: It declares lost what its worker would have sent.
        """
        name = notice.name
        if name in {"batches_lost", "worker_restarted"}:
            name = f"{name}: {notice.fields['reason']}"
            self._require_cause(notice)
            self.losses.append(f"{notice.fields['worker']}.{notice.fields.get('rank')} {name}")
            self._dirty |= {key for key, workers in self._publishers.items() if notice.fields["worker"] in workers}
            if notice.name == "batches_lost":
                spans = self._lost.setdefault((notice.fields["worker"], notice.fields["rank"]), [])
                spans.append((notice.fields["start_seq"], notice.fields["stop_seq"]))
            else:
                self._restarted.add(notice.fields["worker"])
        elif name == "worker_departed":
            self._restarted.add(notice.fields["worker"])  # what still comes of it is refused
        self.counts[name] += 1

    def judge_turn(self) -> None:
        """Judge the broker between two turns.

        Raises:
            ViolationError: Accounts do not add up, a limit is passed, or a view misses something.
        """
        for index, expected in enumerate(self._expected):
            lacks = [event for _, event, is_optional in expected if not is_optional]
            require(not lacks, "a view misses nothing", f"view {index} lacks {lacks[:3]}")
            expected.clear()
        if self._is_quorum_new:
            self._released.clear()  # with what goes out in this turn, since it may have been agreed on before
            self._is_quorum_new = False
        if self._quorums_now is not None:
            self._quorums, self._quorums_now = self._quorums_now, None

    def judge_accounts(self) -> None:
        """Judge accounts and limits; slower, so not every turn.

        Raises:
            ViolationError: Accounts do not add up, or a limit is passed.
        """
        status, limits = self._node.status({}), ReceiverLimits()
        for worker in status.workers:
            gone = worker.released + worker.pending + worker.void + worker.given_up + worker.rejected
            require(worker.received == gone, "votes add up", str(worker))
            if not any(each.plan.worker_id == worker.worker_id for each in self._workers):
                continue  # a seat of the ingest socket that nobody has now
            if worker.worker_id in self._rejoined:
                continue
            said = sum(each.truth.said_count for each in self._workers if each.plan.worker_id == worker.worker_id)
            require(
                worker.received <= said, "no batch is counted twice", f"{worker.worker_id}: {worker.received} of {said}"
            )
            self._judge_tiling(worker)
        for group in status.groups:
            require(
                group.pending_events <= self._plan.broker.pending_events_max, "pending votes are bounded", str(group)
            )
        for output, log in zip(self._node.outputs, self.logs, strict=True):
            counted, sent = (
                (output.replay.counts.batches, output.replay.counts.ends),
                (log.replies_count, log.ends_count),
            )
            require(counted == sent, "replies add up", f"{counted} counted, {sent} sent by view {output.view.name}")
        for view, log in zip(status.views, self.logs, strict=True):
            gone = view.sent + view.filtered + view.suppressed + view.dropped
            require(view.released == gone, "events of a view add up", str(view))
            require(view.batches == len(log.current), "batches of a view add up", str(view))
        for source in self._node.sources:
            for stream in source.streams.values():
                receiver = stream.receiver
                require(receiver.held_count <= limits.hold_batches, "held batches are bounded", str(stream.topic))

    def batches_said(self) -> list[int]:
        """Return how many batches each view has sent in its present epoch."""
        return [len(log.current) if log.epochs else 0 for log in self.logs]

    def judge_beats(self, said: list[int]) -> None:
        """Judge views that had nothing to say for more than a minute.

        Args:
            said: From `batches_said`, when that began.

        Raises:
            ViolationError: One has spoken before, and has said nothing since to show that it is alive.
        """
        for index, (before, now) in enumerate(zip(said, self.batches_said(), strict=True)):
            require(not before or now > before, "an idle view shows that it is alive (V5)", f"view {index} at {now}")

    def judge_truth(self) -> None:
        """Judge what a reader of everything believes when all is at rest.

        Raises:
            ViolationError: It believes in a block that a worker of the group does not hold.
        """
        for group, belief in self.beliefs.items():
            for block, copies in belief.copies.items():
                key = (group, block.data_parallel_rank)
                if key in self.blind:
                    continue
                for name, worker in self._publishers[key].items():
                    held = worker.truth.content.copies.get(block, 0)
                    require(held > 0, "no block is announced that a worker lacks", f"{name} lacks {block} ({copies})")

    def judge_streams(self, *, replayed_only: bool) -> None:
        """Judge the broker's positions when all is at rest.

        Args:
            replayed_only: Only those of workers that can be asked; the others show a lost tail with their next batch.

        Raises:
            ViolationError: A stream is behind its worker, or still recovers.
        """
        for source in self._node.sources:
            for (topic, rank), stream in source.streams.items():
                worker = self._worker_of(source.group, stream.worker_id, topic, rank)
                if replayed_only and worker.plan.replay == "none":
                    continue
                position, sent_stop = stream.receiver.position, worker.truth.sent_stop
                is_even = position == sent_stop or sent_stop == worker.plan.first_seq
                require(is_even, "at rest a stream has everything", f"{worker.name}: {position} of {sent_stop}")
                require(not stream.receiver.is_recovering, "at rest nothing is being recovered", worker.name)
                require(stream.receiver.held_count == 0, "at rest nothing is held", worker.name)

    def judge_fresh(self, fresh: dict[GroupKey, set[Block]]) -> int:
        """Judge what came up after the faults were over: everything that all hold is announced, as often as they hold it.

        Args:
            fresh: Blocks that were never heard of before, by group and rank.

        Returns:
            How many were compared.

        Raises:
            ViolationError: Something is missing.
        """
        count = 0
        for key, blocks in fresh.items():
            for block in blocks:
                held = min(worker.truth.content.copies.get(block, 0) for worker in self._publishers[key].values())
                announced = self.beliefs[key[0]].copies.get(block, 0)
                count += held
                require(held == announced, "what all workers hold is announced", f"{announced} of {held}: {block}")
        return count

    def judge_clean(self) -> int:
        """Judge groups of which nothing was ever lost: what is announced is exactly what all hold, as often as they hold it.

        Returns:
            How many blocks were compared.

        Raises:
            ViolationError: Something is missing, or announced too often.
        """
        status = self._node.status({})
        given_up = {worker.worker_id for worker in status.workers if worker.given_up}
        served = {(each.group, each.data_parallel_rank) for each in status.groups}
        count = 0
        for key, workers in self._publishers.items():
            is_whole = all(worker.is_whole for worker in workers.values())
            if key in self._dirty | self.blind or key not in served or not is_whole or given_up & workers.keys():
                continue
            announced = {b: n for b, n in self.beliefs[key[0]].copies.items() if b.data_parallel_rank == key[1]}
            for name, worker in workers.items():
                is_exact = announced == worker.truth.content.copies
                require(is_exact, "without a loss, what is announced is what all hold", f"{name} holds something else")
            count += len(announced)
        return count

    def hashes_said(self) -> set[BlockHash]:
        """Return every hash that any worker has ever said."""
        return set(self._hashes_said)

    def _judge_release(self, group: str, sent: SentBatch) -> None:
        """No store is released more often than every worker of the quorum has said it."""
        rank = sent.data_parallel_rank
        before, quorums = self._quorums, self._quorums_now
        if quorums is None:
            status = self._node.status({})
            quorums = self._quorums_now = {(each.group, each.data_parallel_rank): each.quorum for each in status.groups}
            self._is_quorum_new = any(before.get(key, quorum) != quorum for key, quorum in quorums.items())
            self.counts["quorum changed"] += self._is_quorum_new
        for event in sent.events:
            if isinstance(event, AllBlocksCleared):
                self.counts["clear sent"] += 1
            if not isinstance(event, BlockStored) or not event.block_hashes:
                continue
            identity = event.identity()
            self._released[rank, identity] += 1
            released = self._released[rank, identity]
            # Who has joined in this turn may have done so behind this release.
            quorum = quorums[group, rank]
            for worker_id in [each for each in quorum if each in before.get((group, rank), quorum)]:
                said = self._publishers[group, rank][worker_id].truth.said[identity]
                require(
                    released <= said,
                    "nothing is released that the quorum did not say",
                    f"{released} times, said {said} times by {worker_id}: {event.block_hashes} in {event.medium}",
                )

    def _judge_tiling(self, status: WorkerStatus) -> None:
        """Every number below a stream's position was counted or declared lost; of workers that stayed in one life.

        But for number 0: a replay that begins at 1 is taken for that of a stream whose first number is 1 (S2).
        """
        if status.worker_id in self._restarted:
            return
        expected = in_doubt = 0
        for stream in status.streams:
            worker = self._publishers[status.group, stream.data_parallel_rank][status.worker_id]
            if worker.truth.life != self._life_at_start[worker.name] or stream.position is None:
                return
            spans = self._lost.get((status.worker_id, stream.data_parallel_rank), ())
            for seq, count in worker.truth.events_of.items():
                if seq < stream.position and not any(start <= seq < stop for start, stop in spans):
                    expected += count
                    in_doubt += count if seq == 0 else 0
        is_tiled = expected - in_doubt <= status.received <= expected
        require(
            is_tiled, "every jump is a declared loss", f"{status.worker_id}: {status.received} instead of {expected}"
        )

    def _require_cause(self, notice: Notice) -> None:
        """What a worker still keeps and would send is not lost for want of it."""
        fields = notice.fields
        if notice.name != "batches_lost" or fields["reason"] not in {"absent", "evicted"}:
            return
        for key, workers in self._publishers.items():
            worker = workers.get(fields["worker"])
            if worker is not None and key[1] == fields["rank"] and worker.plan.replay == "fair" and worker.lives == 1:
                kept = worker.ring.read(fields["start_seq"], 1, 1)
                is_kept = bool(kept) and kept[0].seq < fields["stop_seq"]
                require(not is_kept, "an answer leaves nothing out", f"{worker.name}: {fields}")

    def _worker_of(self, group: str, worker_id: str, topic: bytes, rank: int | None) -> WorkerProcess:
        publishers = self._publishers[group, rank]
        return publishers.get(worker_id) or publishers[topic.decode()]
