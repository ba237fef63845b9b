"""The trace worker: a shell around the simulated engine that publishes, for every rank, what really happened.

`options` says what to play, `traces` reads it, `records` writes down what was said and what was true, `counts` sums up, and
`trace_worker` gives the engine its thread, its clock and its publishers.
"""

from kvbus.worker.counts import BlockCounts, HitRates, RankCounts, WorkerCounts
from kvbus.worker.options import TraceWorkerOptions
from kvbus.worker.trace_worker import RankEndpoints, TraceWorker

__all__ = [
    "BlockCounts",
    "HitRates",
    "RankCounts",
    "RankEndpoints",
    "TraceWorker",
    "TraceWorkerOptions",
    "WorkerCounts",
]
