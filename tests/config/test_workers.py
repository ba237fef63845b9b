"""Workers as typed: what is read, and what is refused with the reason."""

from __future__ import annotations

import pytest

from kvbus.config.workers import WorkerConfig, parse_worker
from kvbus.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "worker"),
    [
        (
            "tcp://127.0.0.1:5557",
            WorkerConfig(worker_id="tcp://127.0.0.1:5557", endpoint="tcp://127.0.0.1:5557"),
        ),
        (
            "w0=tcp://h:1,replay=tcp://h:9,ranks=0-3",
            WorkerConfig(worker_id="w0", endpoint="tcp://h:1", replay_endpoint="tcp://h:9", ranks=(0, 1, 2, 3)),
        ),
        ("w0=bind:tcp://*:1,ranks=2", WorkerConfig(worker_id="w0", endpoint="bind:tcp://*:1", ranks=(2,))),
        ("ipc:///tmp/a=b", WorkerConfig(worker_id="ipc:///tmp/a=b", endpoint="ipc:///tmp/a=b")),
        ("x=ipc:///tmp/a=b", WorkerConfig(worker_id="x", endpoint="ipc:///tmp/a=b")),
        ("connect:tcp://h:1", WorkerConfig(worker_id="tcp://h:1", endpoint="connect:tcp://h:1")),
        ("a=tcp://h:1,group=g", WorkerConfig(worker_id="a", endpoint="tcp://h:1", group="g")),
    ],
)
def test_a_worker_as_typed(text, worker):
    """`id=` is read only in front of the scheme, so an endpoint may contain `=`."""
    assert worker == parse_worker(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected"),
        ("w0=", "expected"),
        ("=tcp://h:1", "empty"),
        ("h:1", "expected"),
        ("tcp://h:70000", "70000"),
        ("tcp://h:1,replay=nonsense", "replay"),
        ("tcp://h:1,foo=2", "unknown option 'foo'; known are replay=, ranks=, group= and server_key="),
        ("tcp://h:1,ranks=3-1", "ranks"),
        ("tcp://h:1,ranks=0,ranks=1", "twice"),
        ("tcp://h:65535,ranks=0-1", "65536"),
        ("tcp://h:1,replay=tcp://h:1", "same"),
    ],
)
def test_a_worker_that_cannot_be_is_refused_with_the_reason(text, reason):
    """G16 among them: the port that a rank would need is named."""
    with pytest.raises(ConfigError) as caught:
        parse_worker(text)
    assert "--worker" in str(caught.value)
    assert reason in str(caught.value)
