"""The checks that run after every test do find what a test leaves behind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

LEAKY = """
import os, subprocess, sys, threading
import pytest, zmq

KEPT = []
never = threading.Event()

def test_thread():
    threading.Thread(target=never.wait, daemon=True, name="leaky").start()

def test_child():
    KEPT.append(subprocess.Popen([sys.executable, "-c", ""]))

def test_context():
    KEPT.append(zmq.Context())
    KEPT[-1].socket(zmq.PUB).close()

def test_socket(zmq_context):
    KEPT.append(zmq_context.socket(zmq.PUB))
    KEPT[-1].bind("inproc://left-open")

def test_folder(tmp_path):
    os.chdir(tmp_path)

def test_clean(zmq_context):
    socket = zmq_context.socket(zmq.PUB)
    socket.bind("tcp://127.0.0.1:0")
    socket.close()
    thread = threading.Thread(target=lambda: None)
    thread.start()
    subprocess.run([sys.executable, "-c", ""], check=True)
"""


def test_what_is_left_behind_fails_its_test(pytester: pytest.Pytester) -> None:
    """One leak of each kind, each reported at the test that made it, and none at the one that cleans up."""
    conftest = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
    pytester.makeconftest(re.sub(r"^(LEAK_GRACE_S|CONTEXT_TERM_S) = .*$", r"\1 = 1.0", conftest, flags=re.MULTILINE))
    pytester.makepyfile(test_leaky=LEAKY)
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider", timeout=100)
    result.assert_outcomes(passed=6, errors=5)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_thread*",
            "left behind: thread 'leaky' (daemon) still runs",
            "*ERROR at teardown of test_child*",
            "left behind: child process * was not ended and waited for",
            "*ERROR at teardown of test_context*",
            "left behind: open *",
            "*ERROR at teardown of test_socket*",
            "the ZeroMQ context did not end in 1 s: open PUB at *",
            "*ERROR at teardown of test_folder*",
            "left behind: working folder changed to *",
        ]
    )
