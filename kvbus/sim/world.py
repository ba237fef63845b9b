"""One run: everything that a seed draws, put together, in two phases.

*Safety*: things break, and what must always hold is checked at every step. *Liveness*: nothing breaks any more. After a bounded
time everything must have converged, or have said why it cannot; then engines are asked things never asked before, and all of
that must arrive.
"""

from __future__ import annotations

import random
from collections import Counter
from hashlib import blake2b

import msgspec

from kvbus.broker.notices import Notice
from kvbus.events import Event, EventBatch
from kvbus.sim.broker_judge import BrokerJudge, GroupKey
from kvbus.sim.broker_process import BrokerHooks, BrokerProcess
from kvbus.sim.clock import MS, SECOND, Clock
from kvbus.sim.contiguous_client import ContiguousClient
from kvbus.sim.draw import draw_plan
from kvbus.sim.faults import Injector
from kvbus.sim.network import Network
from kvbus.sim.plan import EnginePlan, SubscriberPlan
from kvbus.sim.process import Stage
from kvbus.sim.reader_judge import ContiguousJudge, SubscriberJudge
from kvbus.sim.subscriber_process import ReaderProcess, SubscriberProcess
from kvbus.sim.truth import Block
from kvbus.sim.violation import ViolationError, require
from kvbus.sim.worker_process import WorkerProcess
from kvbus.sim.workload import EngineHost, LoadTimes
from kvbus.subscriber.items import Item, Received

__all__ = ["Outcome", "World"]

SETTLE_NS = 80 * SECOND
"""Time to converge: the minute for which a worker is set aside after too many losses, and some."""

WAKE_NS = 6 * SECOND
"""How long everybody is made to speak: what no probe can find out, such as a last number skipped, shows then."""

RECOVER_NS = 75 * SECOND
"""Time to get over what has shown then: a minute aside, once more."""

LOAD_NS = 4 * SECOND
"""How long engines are asked fresh things at the end."""

REST_NS = 60 * SECOND
"""Time for that to arrive: the age of votes, twice."""

ARRIVAL_NS = 2 * SECOND
"""What was said so long ago has arrived everywhere, or was asked for, where a worker lets requests wait."""

ACCOUNTS_EVERY_TURNS = 16

PENDING_ENOUGH = 10_000
"""Pending votes that no load of ours ever has; below it, what is given up for lack of room is nobody's fault."""


KEPT_ENOUGH = 20
"""Batches kept by a view that cannot overtake an answer, as fast as our engines are."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run ended with.

    Attributes:
        seed: Its seed.
        digest: Of everything that was sent, told and broken; equal for equal seeds.
        counts: What happened how often, by a word.
        violation: The promise that was broken, or `None`.
    """

    seed: int
    digest: str
    counts: dict[str, int]
    violation: str | None


class World:
    """One run.

    Attributes:
        plan: What the seed drew.
        lines: The trace, if it was asked for.
    """

    def __init__(self, seed: int, *, traces: bool = False) -> None:
        """Put everything together.

        Args:
            seed: Any number.
            traces: Whether to keep the trace.
        """
        plan = self.plan = draw_plan(seed)
        self.lines: list[str] = []
        self._traces = traces
        self._hash = blake2b(digest_size=16)
        self._turns = 0
        self._last_said_ns = 0
        self._compared: Counter[str] = Counter()
        self._rng = random.Random(f"world/{seed}")
        self._clock = Clock()
        self._start_ns = self._clock.now_ns
        self._stop_ns = self._start_ns + plan.safety_ns
        self._network = Network(self._clock, self._derive("network"), plan.links)
        self._workers = [WorkerProcess(self._stage(f"worker/{index}"), each) for index, each in enumerate(plan.workers)]
        self._judge = BrokerJudge(plan, self._workers)
        wake_ns = self._stop_ns + SETTLE_NS
        fresh_ns = wake_ns + WAKE_NS + RECOVER_NS
        load_stop_ns = self._start_ns + plan.load_ns
        times = LoadTimes(load_stop_ns, wake_ns, wake_ns + WAKE_NS, fresh_ns, fresh_ns + LOAD_NS)
        self._engines = {
            self._host(each, index, times): self._ranks_of(each) for index, each in enumerate(plan.engines)
        }
        self._broker = BrokerProcess(self._stage("broker"), plan, self._hooks())
        self._readers: list[ReaderProcess] = []
        self._subscriber_judges: list[SubscriberJudge] = []
        self._contiguous_judges: list[ContiguousJudge] = []
        for each in plan.subscribers:
            self._add_reader(each)

    def run(self) -> Outcome:
        """Run both phases.

        Returns:
            What it ended with; a broken promise is in it, and so is an exception, which is a bug as well. With a trace, an
            exception is raised, because then it is wanted whole.
        """
        violation = None
        try:
            self._run()
        except ViolationError as broken:
            violation = str(broken)
        except Exception as error:
            if self._traces:
                raise
            violation = f"no exception: {error!r}"
        if violation is not None:
            self._tell(f"VIOLATION {violation}")
        return Outcome(
            seed=self.plan.seed,
            digest=self._hash.hexdigest(),
            counts={word: n for word, n in sorted(self._counts().items()) if n},
            violation=violation,
        )

    def _run(self) -> None:
        plan, clock = self.plan, self._clock
        for worker in self._workers:
            worker.start()
        for host in self._engines:
            clock.after(self._rng.randrange(SECOND), host.start)
        clock.after(self._rng.choice((0, 0, 2 * SECOND)), self._broker.start)
        for reader in self._readers:
            clock.after(reader.plan.joins_at_ns, reader.start)
        self._injector = Injector(
            self._stage("faults"),
            plan.faults,
            stop_ns=self._stop_ns,
            tail_ns=self._start_ns + plan.load_ns,
            broker=self._broker,
            engines=self._engines,
            readers=self._readers,
            tell=self._tell,
        )
        self._advance(self._stop_ns)
        self._calm()
        said = self._judge.batches_said()
        self._advance(self._stop_ns + SETTLE_NS)
        self._judge.judge_beats(said)
        self._let_arrive()
        self._judge.judge_streams(replayed_only=True)
        self._judge_readers({})
        self._advance(clock.now_ns + WAKE_NS + RECOVER_NS)
        known = self._judge.hashes_said()
        told = self._told()
        self._advance(clock.now_ns + LOAD_NS + REST_NS)
        self._let_arrive()
        require(told == self._told(), "after the faults nothing is lost", "; ".join(self._told()[len(told) :]))
        self._judge_rest(known)

    def _calm(self) -> None:
        """End all faults; what is dead is back by now."""
        self._tell("quiet")
        self._network.calm()
        self._broker.pause_probability = 0.0
        for worker in self._workers:
            worker.may_fail = False
        for reader in self._readers:
            if isinstance(reader, SubscriberProcess):
                reader.pause_probability = 0.0

    def _judge_rest(self, known: set[int | bytes]) -> None:
        """Judge everything at the end."""
        judge = self._judge
        judge.judge_accounts()
        judge.judge_streams(replayed_only=False)
        judge.judge_truth()
        self._compared["blocks of groups without a loss"] = judge.judge_clean()
        fresh: dict[GroupKey, set[Block]] = {}
        for worker in self._workers:
            key = (worker.plan.group, worker.plan.data_parallel_rank)
            blocks = {block for block in worker.truth.content.copies if block.block_hash not in known}
            fresh.setdefault(key, set()).update(blocks)
        prompt = {(each.group, each.data_parallel_rank) for each in self.plan.engines if self._is_prompt(each)}
        announced = {key: blocks for key, blocks in fresh.items() if key in prompt}
        self._compared["fresh blocks"] = judge.judge_fresh(announced)
        self._judge_readers(fresh)

    def _judge_readers(self, fresh: dict[GroupKey, set[Block]]) -> None:
        """Judge every reader at rest."""
        blocks = {block for each in fresh.values() for block in each}
        for judge in self._subscriber_judges:
            judge.judge_rest(blocks)
        for client in self._contiguous_judges:
            client.judge_rest()

    def _is_prompt(self, engine: EnginePlan) -> bool:
        """Tell whether an engine's ranks say the same things soon enough for all to be agreed on within the broker's limits."""
        broker, ranks = self.plan.broker, engine.ranks
        held_ns = LOAD_NS if ranks.hold_probability else SECOND // 5
        drift_ns = ranks.skew_ns + max((lag_ns for _, lag_ns in ranks.lags_ns), default=0) + held_ns
        patience_s = min(broker.age_s, broker.clear_wait_s) if engine.options.clears_per_hour else broker.age_s
        if engine.options.clears_per_hour and ranks.hold_probability:
            return False  # between two loads there are clears only, and a rank may hold one back until the next
        return ranks.count == 1 or (drift_ns < patience_s * SECOND and broker.pending_events_max >= PENDING_ENOUGH)

    def _told(self) -> list[str]:
        """Return all losses and restarts that anybody was told of, in this life of the broker.

        But for one: where a view lets go of what a reader had while that probes an idle stream, the answer is a snapshot (V4),
        and the reader takes it for what it looks like. A view that keeps more than it says in a moment never does.
        """
        told = list(self._judge.losses)
        views = self.plan.broker.views
        small = {each.name for each in self.plan.subscribers if views[each.view_index].buffer_batches < KEPT_ENOUGH}
        for judge in self._subscriber_judges:
            told += [
                f"{judge.name} {word}"
                for word, n in judge.counts.items()
                if word[:3] in {"gap", "res"} and not (word == "restart: changed" and judge.name in small)
                for _ in range(n)
            ]
        return told

    def _let_arrive(self) -> None:
        """Wait until what was said last has reached everybody; a cache may be cleared at any time."""
        while self._clock.now_ns < self._last_said_ns + ARRIVAL_NS:
            self._advance(self._last_said_ns + ARRIVAL_NS)

    def _advance(self, until_ns: int) -> None:
        while self._clock.run_next(until_ns):
            pass

    def _derive(self, name: str) -> random.Random:
        """Make a source of chance of its own for a part, so that parts do not disturb each other's."""
        return random.Random(f"{name}/{self.plan.seed}")

    def _stage(self, name: str) -> Stage:
        """Return what a process stands on."""
        return Stage(self._clock, self._network, self._derive(name), self.plan.turn_ns)

    def _ranks_of(self, engine: EnginePlan) -> list[WorkerProcess]:
        """Return an engine's publishers, by tensor-parallel rank."""
        return [
            worker
            for worker in self._workers
            if (worker.plan.group, worker.plan.data_parallel_rank) == (engine.group, engine.data_parallel_rank)
        ]

    def _host(self, engine: EnginePlan, index: int, times: LoadTimes) -> EngineHost:
        """Tie an engine to its publishers."""
        workers = self._ranks_of(engine)

        def deliver(rank: int, events: list[Event]) -> None:
            self._judge.note_said(events)
            self._last_said_ns = self._clock.now_ns
            workers[rank].publish(events)

        return EngineHost(self._clock, engine, f"engine/{self.plan.seed}/{index}", times, deliver)

    def _hooks(self) -> BrokerHooks:
        return BrokerHooks(
            on_life=self._on_life,
            on_change=self._judge.note_change,
            on_live=self._judge.note_live,
            on_output=self._on_output,
            on_reply=self._judge.note_reply,
            on_notice=self._on_notice,
            on_turn=self._on_turn,
        )

    def _on_life(self, is_resumed: bool) -> None:
        self._tell(f"broker begins {'where it ended' if is_resumed else 'anew'}")
        if is_resumed:
            self._judge.resume_life(self._broker.node)
        else:
            self._judge.begin_life(self._broker.node)

    def _on_output(self, view_index: int, frames: list[bytes]) -> None:
        self._last_said_ns = self._clock.now_ns
        self._tell(f"view {view_index} sends {int.from_bytes(frames[1], 'big')}", frames[2])
        self._judge.note_output(view_index, frames)

    def _on_notice(self, notice: Notice) -> None:
        self._tell(f"broker: {notice.name} {notice.fields}")
        self._judge.note_notice(notice)

    def _on_turn(self) -> None:
        self._judge.judge_turn()
        self._turns += 1
        if self._turns % ACCOUNTS_EVERY_TURNS == 0:
            self._judge.judge_accounts()

    def _add_reader(self, plan: SubscriberPlan) -> None:
        """Add one reader and its judge."""
        view, log = self.plan.broker.views[plan.view_index], self._judge.logs[plan.view_index]

        def kept_from() -> int | None:
            return self._broker.node.outputs[plan.view_index].oldest_seq if self._broker.is_running else None

        if plan.kind == "node":
            subscriber = SubscriberProcess(self._stage(plan.name), plan, view)
            judge = SubscriberJudge(
                plan.name,
                log,
                plan.event_filter,
                has_replay=plan.has_replay,
                has_snapshots=view.snapshot,
                kept_from=kept_from,
            )
            subscriber.pause_probability = self.plan.faults.pause_probability
            subscriber.on_begin = judge.begin
            subscriber.on_item = lambda item: self._on_item(judge, item)
            self._subscriber_judges.append(judge)
            self._readers.append(subscriber)
            return
        client = ContiguousClient(self._stage(plan.name), plan, view)
        client_judge = ContiguousJudge(plan.name, log, kept_from)
        client.on_forget = client_judge.forget
        client.on_batch = lambda seq, batch: self._on_batch(client_judge, seq, batch)
        self._contiguous_judges.append(client_judge)
        self._readers.append(client)

    def _on_item(self, judge: SubscriberJudge, item: Item) -> None:
        self._tell(f"{judge.name} gets {item.seq if isinstance(item, Received) else item}")
        judge.take(item)

    def _on_batch(self, judge: ContiguousJudge, seq: int, batch: EventBatch) -> None:
        self._tell(f"{judge.name} applies {seq}")
        judge.take(seq, batch)

    def _tell(self, line: str, payload: bytes = b"") -> None:
        """Add a line to the trace."""
        line = f"{(self._clock.now_ns - self._start_ns) / MS:12.3f} {line}"
        self._hash.update(line.encode())
        self._hash.update(payload)
        if self._traces:
            self.lines.append(line)

    def _counts(self) -> Counter[str]:
        """Add up what happened."""
        counts: Counter[str] = Counter()
        for worker in self.plan.workers:
            counts["plan: no replay"] += worker.replay == "none"
            counts["plan: dump"] += worker.replay == "dump"
            counts["plan: old form"] += worker.replay != "none" and worker.old_form
            counts["plan: first number 1"] += worker.first_seq == 1
        counts["broker: snapshots"] = sum(log.snapshots_count for log in self._judge.logs)
        for name, part in (
            ("fault", self._injector.counts),
            ("link", self._network.counts),
            ("broker", self._judge.counts),
            ("compared", self._compared),
        ):
            counts.update({f"{name}: {word}": n for word, n in part.items()})
        readers = [judge.counts for judge in self._subscriber_judges]
        readers += [judge.counts for judge in self._contiguous_judges]
        for part in readers:
            counts.update({f"reader: {word}": n for word, n in part.items()})
        return counts
