"""A: what a user assembles from vLLM's own parts, as a baseline. Nothing of vLLM is here; its file is loaded when asked for.

A SUB is polled and read as vLLM's example of a subscriber does it, batches are decoded with vLLM's types, its
`KVEventAggregator` is given one batch of every worker, in rounds, as an engine gives it one step of every rank, and what is
common goes to its `ZmqEventPublisher`. Rounds are right for workers whose batches are the same; for others A counts wrongly.

What the file imports of vLLM comes from the installation that it belongs to. Where that cannot be imported (no GPU libraries,
or the file alone was unpacked), stand-ins take its place, just enough for the file to load: the configuration becomes a
plain record, the logger Python's, the type of a block hash bytes or an integer.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import logging
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import zmq

from kvbus.bench.child import watch
from kvbus.bench.middles import subscribe
from kvbus.bench.options import BenchOptions
from kvbus.bench.processes import Channel
from kvbus.errors import ConfigError, Problem

__all__ = ["check_peer", "load_peer", "run"]

NEEDED = ("KVEventAggregator", "KVEventBatch", "ZmqEventPublisher")

POLL_MS = 50

STAND_INS: dict[str, Any] = {
    "ExternalBlockHash": bytes | int,
    "KVEventsConfig": SimpleNamespace,
    "init_logger": logging.getLogger,
}
"""By the name that is imported; everything else becomes `None`, which none of the three classes uses on its way."""


def check_peer(path: str) -> None:
    """Refuse a file that cannot be the one.

    Args:
        path: Of vLLM's `kv_events.py`.

    Raises:
        ConfigError: It cannot be read, or has not the classes that are needed.
    """
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError) as error:
        reason = getattr(error, "strerror", None) or "is no Python file"
        raise ConfigError([Problem("--peer", path, reason)]) from None
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    if missing := [name for name in NEEDED if name not in classes]:
        raise ConfigError([Problem("--peer", path, f"has no {', '.join(missing)}: vLLM's kv_events.py is meant")])


def load_peer(path: str) -> ModuleType:
    """Load vLLM's `kv_events.py`.

    Args:
        path: Where it is: `…/vllm/distributed/kv_events.py`, or anywhere else on its own.

    Raises:
        ConfigError: It cannot be read, or has not the classes that are needed.
    """
    check_peer(path)
    file = Path(path).resolve()
    root = file.parents[2] if file.parts[-3:-1] == ("vllm", "distributed") else None
    if root is not None:
        sys.path.insert(0, str(root))
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "vllm":
            _provide(node.module, [alias.name for alias in node.names])
    spec = importlib.util.spec_from_file_location("kvbus_bench_peer", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # msgspec looks annotations up there
    spec.loader.exec_module(module)
    return module


def _provide(name: str, wanted: list[str]) -> None:
    """See to it that a module can be imported and has what is wanted of it."""
    # An engine's package fails to load in many ways, and every one means the same here.
    with suppress(Exception):
        module = importlib.import_module(name)
        if all(hasattr(module, each) for each in wanted):
            return
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        package = ".".join(parts[:length])
        if package not in sys.modules:
            stand_in = ModuleType(package)
            stand_in.__path__ = []
            sys.modules[package] = stand_in
    for each in wanted:
        if not hasattr(sys.modules[name], each):
            setattr(sys.modules[name], each, STAND_INS.get(each))


def run(role: str, channel: Channel, arguments: dict[str, Any]) -> None:
    """Stand between, for ever.

    Args:
        role: Not looked at.
        channel: To the parent; answers `urls`.
        arguments: As `middles.run` has them.
    """
    watch(channel)
    options = msgspec.convert(arguments["options"], BenchOptions)
    assert options.peer is not None
    vllm = load_peer(options.peer)
    # A host with a star is bound to, any other connected to.
    url = arguments["url"].format(name="peer").replace("127.0.0.1:0", "127.0.0.1:*")
    publisher = vllm.ZmqEventPublisher(0, endpoint=url, hwm=0)
    with zmq.Context() as context:
        source = subscribe(context, zmq.SUB, arguments["upstream"])
        channel.write({"urls": [publisher._pub.getsockopt_string(zmq.LAST_ENDPOINT)]})
        _assemble(vllm, source, publisher, options.workers)


def _assemble(vllm: ModuleType, source: zmq.Socket[bytes], publisher: Any, workers: int) -> None:
    """Join the workers in rounds."""
    aggregator = vllm.KVEventAggregator(workers)
    decode = msgspec.msgpack.Decoder(vllm.KVEventBatch).decode
    waiting: dict[bytes, deque[Any]] = {}
    while True:
        if not source.poll(POLL_MS):
            continue
        topic, _, payload = source.recv_multipart()
        waiting.setdefault(topic, deque()).append(decode(payload))
        while len(waiting) == workers and all(waiting.values()):
            batches = [queue.popleft() for queue in waiting.values()]
            for batch in batches:
                aggregator.add_events(batch.events)
            common = aggregator.get_common_events()
            aggregator.clear_events()
            if common:
                ts = max(batch.ts for batch in batches)
                publisher.publish(vllm.KVEventBatch(ts=ts, events=common, data_parallel_rank=0))
