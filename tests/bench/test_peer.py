"""vLLM's file is found wanting before anything starts, and loaded wherever it lies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvbus.bench.peer import check_peer
from kvbus.errors import ConfigError
from tests.bench.vllm_like import SOURCE, write_vllm_like


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file or directory"),
        ("def (", "is no Python file"),
        ("\0", "is no Python file"),
        ("class KVEventBatch: ...", "has no KVEventAggregator, ZmqEventPublisher"),
    ],
)
def test_a_file_that_cannot_be_it_is_refused(tmp_path: Path, text: str | None, reason: str) -> None:
    """By name, and with what is wrong."""
    path = tmp_path / "kv_events.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=f"--peer: {reason}"):
        check_peer(str(path))


def _loaded(path: Path) -> str:
    """What a fresh interpreter makes of a file, since loading one leaves stand-ins behind."""
    program = (
        f"from kvbus.bench.peer import load_peer\nloaded = load_peer({str(path)!r})\n"
        "print(loaded.get_ip, loaded.logger.name, loaded.KVEventAggregator(2).workers, loaded.ExternalBlockHash)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert "" == done.stderr
    return done.stdout.strip()


def test_what_is_missing_of_the_engine_gets_stand_ins(tmp_path: Path) -> None:
    """The file alone is enough, unpacked anywhere."""
    path = tmp_path / "kv_events.py"
    path.write_text(SOURCE)
    assert "None kvbus_bench_peer 2 bytes | int" == _loaded(path)


def test_what_can_be_imported_of_the_installation_is(tmp_path: Path) -> None:
    """Its own parts come before stand-ins."""
    path = write_vllm_like(tmp_path)
    utils = tmp_path / "vllm" / "utils"
    utils.mkdir()
    (utils / "network_utils.py").write_text("get_ip = 'theirs'")
    (tmp_path / "vllm" / "logger.py").write_text("raise RuntimeError('no GPU')")
    assert "theirs kvbus_bench_peer 2 bytes | int" == _loaded(path)
