"""Files for tests: what ranks published, and what the tiers held."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from kvbus.errors import ConfigError
from kvbus.events import BlockRemoved, EventBatch
from kvbus.offload.connector import TierKey
from kvbus.offload.ranks import EngineStep, RankBatch
from kvbus.worker.records import OracleFile, RankLogs

GPU = TierKey("GPU", None, 0)
CPU = TierKey("CPU", "cpu-tier", 1)


def test_one_file_a_rank_one_line_a_batch(tmp_path: Path) -> None:
    event = BlockRemoved([2**64 - 1], "GPU", 0)
    with RankLogs(str(tmp_path / "new" / "logs"), 2) as logs:
        logs.write(RankBatch(5, 1, [event], 9, 4), EventBatch(1.5, [event], 3), 7)
        logs.write(RankBatch(5, 1, [], 9, None), EventBatch(2.5, [], 3), None)
    first, second = map(json.loads, (tmp_path / "new" / "logs" / "rank-1.jsonl").read_text().splitlines())
    expected = {"type": "BlockRemoved", "block_hashes": [2**64 - 1], "medium": "GPU", "group_idx": 0}
    expected |= {"locality": None, "ownership": None}
    assert {"seq": 7, "step": 4, "events_stop": 9, "ts": 1.5, "data_parallel_rank": 3, "events": [expected]} == first
    assert (None, None, []) == (second["seq"], second["step"], second["events"])
    assert "" == (tmp_path / "new" / "logs" / "rank-0.jsonl").read_text()


def test_the_oracle_tells_changes_from_which_the_content_follows(tmp_path: Path) -> None:
    contents = [
        {GPU: Counter({1: 1, 2: 2})},
        {GPU: Counter({2: 1}), CPU: Counter({5: 1})},
        {CPU: Counter({5: 1})},
        {},
    ]
    path = tmp_path / "oracle.jsonl"
    with OracleFile(str(path)) as oracle:
        for index, content in enumerate(contents):
            oracle.write(EngineStep(index, 10 * index, [BlockRemoved([1])] * 2), content)
    rebuilt: dict[tuple, int] = {}
    for number, text in enumerate(path.read_text().splitlines()):
        line = json.loads(text)
        assert (number, 10 * number, 2 * number + 2) == (line["step"], line["time_ns"], line["events"])
        for *key, copies in line["changes"]:
            rebuilt[tuple(key)] = copies
        held = {key: copies for key, copies in rebuilt.items() if copies}
        assert {(*key, h): n for key, counts in contents[number].items() for h, n in counts.items()} == held
    assert 4 == number + 1


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    with pytest.raises(ConfigError, match="--log-dir: cannot be written"):
        RankLogs(str(occupied), 1)
    with pytest.raises(ConfigError, match="--oracle: cannot be written"):
        OracleFile(str(tmp_path))
