"""vllm-router with policy `kv_aware` before two stand-ins for workers: where it sends a request, and for what credit."""

from __future__ import annotations

import json
import math
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.interop.bus import Source
from tests.interop.consumers import Port, Program, Verdict, compare, wait_for
from tests.interop.engine import BLOCK_TOKENS, Held, Prompt, depth
from tests.interop.web import Http

MODEL = "m"
HOST_WEIGHT = 0.8
"""What the router credits a block of the host tier with; its own default."""

DECISION = re.compile(r"KV prefix decision.*?credited_prefix_tokens=(\d+)")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class StandIn(BaseHTTPRequestHandler):
    """A worker that is well, and answers every completion with its own port."""

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self._answer({"id": "x", "object": "text_completion", "model": MODEL, "port": self.server.server_address[1]})

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""

    def _answer(self, answer: dict[str, object]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class VllmRouter:
    """`vllm-router --policy kv_aware`."""

    profile = "vllm-router"

    def __init__(self, folder: Path, name: str) -> None:
        self._log = folder / f"{name}.log"
        self._program: Program | None = None
        self._ports = [Port(), Port()]
        self._names: dict[int, str] = {}
        self._workers: list[tuple[ThreadingHTTPServer, threading.Thread]] = []
        self._read_bytes = 0
        self._credits: list[int] = []
        self._asked = 0

    def follow(self, sources: dict[str, Source]) -> None:
        port, prometheus_port = (each.number for each in self._ports)
        command = [sys.executable, "-m", "vllm_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--prometheus-port", str(prometheus_port), "--log-level", "debug", "--policy", "kv_aware"]
        command += ["--kv-event-block-size", str(BLOCK_TOKENS), "--kv-event-model", MODEL]
        command += ["--kv-penalty-host", str(HOST_WEIGHT), "--worker-startup-check-interval", "1"]
        urls = []
        for name, source in sources.items():
            urls.append(f"http://127.0.0.1:{self._stand_in(name)}")
            command += ["--kv-event-source", f"{urls[-1]}={source.endpoint}"]
            command += ["--kv-event-replay-source", f"{urls[-1]}={source.replay_endpoint}"]
        self._program = Program([*command, "--worker-urls", *urls], self._log)
        self._http = Http(port)
        self._program.wait_until(lambda: self._http.answers("/health"))

    def judge(self, prompt: Prompt, held: dict[str, Held]) -> Verdict:
        # One token more: it never credits the whole of a prompt, whose last token has to be computed.
        tokens = [token for block in prompt for token in block.tokens] + [1]
        answer = self._http.ask("/v1/completions", {"model": MODEL, "prompt": tokens, "max_tokens": 1})
        self._asked += 1
        wait_for(self._has_decided)
        credited = self._credits[self._asked - 1]
        real = {name: self._credit(prompt, each) for name, each in held.items()}
        verdict = compare(credited, max(real.values()))
        if verdict == "right" and credited and real[self._names[answer["port"]]] != credited:
            return "too much"
        return verdict

    def close(self) -> None:
        if self._program is not None:
            self._http.close()
            self._program.close()
        for port in self._ports:
            port.close()
        for server, thread in self._workers:
            server.shutdown()
            thread.join()
            server.server_close()

    def _stand_in(self, name: str) -> int:
        server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        self._workers.append((server, thread))
        self._names[server.server_address[1]] = name
        return server.server_address[1]

    def _has_decided(self) -> bool:
        """Read on in its log; tell whether it has said what it credited for every request."""
        with self._log.open("rb") as log:
            log.seek(self._read_bytes)
            whole, end, _ = log.read().rpartition(b"\n")
        self._read_bytes += len(whole) + len(end)
        lines = COLOURS.sub("", whole.decode(errors="replace"))
        self._credits += [int(each) for each in DECISION.findall(lines)]
        return len(self._credits) >= self._asked

    @staticmethod
    def _credit(prompt: Prompt, held: Held) -> int:
        """What a worker deserves: full credit for what the GPU holds, less for what the host holds behind it."""
        on_gpu = depth(prompt, held["GPU"])
        in_both = depth(prompt, held["GPU"], held["CPU"])
        return math.floor(BLOCK_TOKENS * (on_gpu + HOST_WEIGHT * (in_both - on_gpu)) + 1e-9)
