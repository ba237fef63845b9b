"""What a trace worker writes down for tests: every batch that a rank published, and what the tiers truly held."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import IO

from kvbus.errors import ConfigError, Problem
from kvbus.events import BlockHash, EventBatch
from kvbus.offload.connector import TierKey
from kvbus.offload.ranks import EngineStep, RankBatch
from kvbus.wire.jsonform import batch_to_json, dumps

__all__ = ["OracleFile", "RankLogs"]


class RankLogs:
    """One file a rank, `rank-R.jsonl`, one line a batch: what was published, in the JSON form of the wire vectors.

    A line holds `seq`, `step` (the engine's step that it ends with, or null where it ends inside one), `events_stop` (events of
    this rank up to its end) and the batch: `ts`, `data_parallel_rank`, `events`.
    """

    def __init__(self, directory: str, ranks: int) -> None:
        """Open the files; what was in them is gone.

        Args:
            directory: Made if absent.
            ranks: How many.

        Raises:
            ConfigError: A file cannot be made.
        """
        self._files: list[IO[str]] = []
        try:
            folder = Path(directory)
            folder.mkdir(parents=True, exist_ok=True)
            for rank in range(ranks):
                self._files.append((folder / f"rank-{rank}.jsonl").open("w", encoding="utf-8"))
        except OSError as error:
            self.close()
            raise ConfigError([Problem("--log-dir", directory, f"cannot be written: {error.strerror}")]) from None

    def write(self, rank_batch: RankBatch, batch: EventBatch, seq: int | None) -> None:
        """Write down one batch.

        Args:
            rank_batch: What the rank said when.
            batch: The same as it was published.
            seq: Its number; `None` = it was published nowhere.
        """
        line = {
            "seq": seq,
            "step": rank_batch.step_index,
            "events_stop": rank_batch.events_stop,
            **batch_to_json(batch),
        }
        self._files[rank_batch.tensor_parallel_rank].write(dumps(line) + "\n")

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    def __enter__(self) -> RankLogs:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the files."""
        self.close()


class OracleFile:
    """The true content of every tier after every step, as changes, one line a step.

    A line holds `step`, `time_ns` of the trace, `events` (how many up to the end of the step) and `changes`: `[medium, ownership,
    group_idx, hash, copies]` for everything whose number of copies is another than after the step before; 0 = gone. Applied
    line by line from nothing, they give the content. They are made by comparing the tiers' own books, not from events.
    """

    def __init__(self, path: str) -> None:
        """Open the file; what was in it is gone.

        Args:
            path: Where.

        Raises:
            ConfigError: It cannot be made.
        """
        try:
            self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - `close` closes it
        except OSError as error:
            raise ConfigError([Problem("--oracle", path, f"cannot be written: {error.strerror}")]) from None
        self._events_count = 0
        self._last: dict[TierKey, Counter[BlockHash]] = {}

    def write(self, step: EngineStep, content: dict[TierKey, Counter[BlockHash]]) -> None:
        """Write down one step.

        Args:
            step: The step.
            content: What the tiers hold after it. Kept until the next call.

        Cost: O(blocks held), so that it is for tests and not for long runs.
        """
        self._events_count += len(step.events)
        changes = [
            [*key, block_hash, copies]
            for key in sorted(self._last.keys() | content.keys(), key=str)
            for block_hash, copies in _changes(self._last.get(key, Counter()), content.get(key, Counter()))
        ]
        line = {"step": step.step_index, "time_ns": step.time_ns, "events": self._events_count, "changes": changes}
        self._file.write(dumps(line) + "\n")
        self._last = content

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> OracleFile:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()


def _changes(before: Counter[BlockHash], after: Counter[BlockHash]) -> list[tuple[BlockHash, int]]:
    """Return the hashes whose number of copies changed, with the new number."""
    changed = [(block_hash, copies) for block_hash, copies in after.items() if before[block_hash] != copies]
    return changed + [(block_hash, 0) for block_hash in before if block_hash not in after]
