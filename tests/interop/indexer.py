"""Dynamo's standalone indexer, asked over HTTP for the overlap of each prompt in each tier."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.interop.bus import Source
from tests.interop.consumers import Port, Program, Verdict, compare, worst
from tests.interop.engine import BLOCK_TOKENS, Held, Prompt, depth
from tests.interop.web import Http

MODEL = "m"


class Dynamo:
    """`python -m dynamo.indexer`."""

    profile = "dynamo"

    def __init__(self, folder: Path, name: str) -> None:
        self._port = Port()
        self._names: list[str] = []
        self._program = Program(
            [sys.executable, "-m", "dynamo.indexer", "--port", str(self._port.number), "--threads", "1"],
            folder / f"{name}.log",
        )
        self._http = Http(self._port.number)

    def follow(self, sources: dict[str, Source]) -> None:
        self._program.wait_until(lambda: self._http.answers("/health"))
        for instance, (name, source) in enumerate(sources.items(), start=1):
            self._names.append(name)
            worker = {"instance_id": instance, "dp_rank": 0, "model_name": MODEL, "block_size": BLOCK_TOKENS}
            self._http.ask("/register", worker | source._asdict())

    def judge(self, prompt: Prompt, held: dict[str, Held]) -> Verdict:
        tokens = [token for block in prompt for token in block.tokens]
        found = self._http.ask("/query", {"model_name": MODEL, "token_ids": tokens})["instances"]
        verdicts = []
        for instance, name in enumerate(self._names, start=1):
            said: dict[str, Any] = found.get(str(instance), {})
            on_gpu = depth(prompt, held[name]["GPU"])
            verdicts.append(compare(said.get("gpu", 0), on_gpu * BLOCK_TOKENS))
            in_both = depth(prompt, held[name]["GPU"], held[name]["CPU"])
            verdicts.append(compare(said.get("cpu", 0), in_both * BLOCK_TOKENS))
        return worst(verdicts)

    def close(self) -> None:
        self._http.close()
        self._program.close()
        self._port.close()
