"""A file that lists workers is read as a whole or not at all."""

from __future__ import annotations

import pytest

from kvbus.config.workers import WorkerConfig, parse_worker
from kvbus.discovery.answers import AnswerError
from kvbus.discovery.worker_file import listed_workers

TOML = b"""# who is there
workers = [
  "w0=tcp://10.0.0.1:5557,replay=tcp://10.0.0.1:5558",
  { worker_id = "w1", endpoint = "tcp://10.0.0.2:5557", ranks = "0-1", group = "g" },
]
"""
JSON = b'{"workers": ["w0=tcp://10.0.0.1:5557", {"worker_id": "w1", "endpoint": "tcp://10.0.0.2:5557"}]}'


def test_toml_and_json_and_a_list_alone():
    assert (
        parse_worker("w0=tcp://10.0.0.1:5557,replay=tcp://10.0.0.1:5558"),
        WorkerConfig(worker_id="w1", endpoint="tcp://10.0.0.2:5557", ranks=(0, 1), group="g"),
    ) == listed_workers(TOML)
    assert ["w0", "w1"] == [worker.worker_id for worker in listed_workers(JSON)]
    assert listed_workers(JSON) == listed_workers(JSON[len(b'{"workers": ') : -1])
    assert () == listed_workers(b"workers = []")


@pytest.mark.parametrize("content", [TOML, JSON, JSON[len(b'{"workers": ') : -1]])
def test_a_file_cut_off_anywhere_is_no_shorter_list(content):
    """Whoever writes it may be interrupted, or simply not be done yet."""
    whole = listed_workers(content)
    for length in range(len(content)):
        try:
            found = listed_workers(content[:length])
        except AnswerError:
            continue
        assert whole == found, content[:length]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "has no workers"),
        (b"\xff", "neither TOML nor JSON"),
        (b"[" * 100_000, "neither TOML nor JSON"),
        (b"worker = []", "has no workers"),
        (b"workers = []\nage_s = 3", "has a key 'age_s'"),
        (b'[[workers]]\nworker_id = "a"\nendpoint = "tcp://h:1"', "does not show where it ends"),
        (b'workers = "a"', "workers: must be a list"),
        (b'workers = ["nonsense"]', r"workers\[0\]: expected"),
        (b'workers = [{ worker_id = "a", endpoint = "tcp://h:0" }]', r"workers\[0\].endpoint: port 0"),
        (b"5", "neither TOML nor JSON"),
        (b'{"a": 1}', "has no workers"),
    ],
)
def test_what_is_broken_is_said(content, reason):
    with pytest.raises(AnswerError, match=reason):
        listed_workers(content)
