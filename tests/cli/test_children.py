"""Child processes are waited for until they are ready, and never outlive the one who started them."""

from __future__ import annotations

import os
import signal

import pytest

from kvbus_cli.children import Child, ChildError
from kvbus_cli.exits import Exit

BROKER = ["broker", "--worker", "tcp://127.0.0.1:9", "--pub", "tcp://127.0.0.1:0", "--replay", "tcp://127.0.0.1:0"]
BROKER += ["--http", "none"]


def test_a_ready_child_tells_where_it_is(tmp_path):
    with Child.that_gets_ready("broker", BROKER, tmp_path) as child:
        assert {"pub:all", "replay:all"} == set(child.wait_ready())
        child.ask_to_end()
        assert "" == child.finish()
    assert 0 == child.process.returncode


def test_a_child_that_cannot_start_says_why(tmp_path):
    with Child.that_gets_ready("broker", ["broker"], tmp_path) as child, pytest.raises(ChildError, match="--worker"):
        child.wait_ready()


def test_a_child_is_gone_when_its_block_ends(tmp_path):
    def fail() -> None:
        child.wait_ready()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Child.that_gets_ready("broker", BROKER, tmp_path) as child:
        fail()
    assert child.has_ended


def test_a_failed_end_is_an_error_with_its_last_words(tmp_path):
    with Child("tail", ["tail", "nonsense"], tmp_path) as child, pytest.raises(ChildError, match="nonsense") as caught:
        child.finish()
    assert Exit.USAGE == caught.value.exit_code


def test_it_is_asked_to_end_once(tmp_path, monkeypatch):
    """A second SIGTERM may find a child that listens no more, and would kill it on its way out."""
    with Child.that_gets_ready("broker", BROKER, tmp_path) as child:
        child.wait_ready()
        told = []
        send = child.process.send_signal
        monkeypatch.setattr(child.process, "send_signal", lambda number: (told.append(number), send(number)))
        for _ in range(3):
            child.ask_to_end()
        child.finish()
    assert [signal.SIGTERM] == told


def test_ctrl_c_in_the_terminal_is_the_parents_affair(tmp_path):
    """It goes to the whole process group of the foreground; a child ends when its parent says so."""
    with Child.that_gets_ready("broker", BROKER, tmp_path) as child:
        child.wait_ready()
        assert os.getpgid(child.process.pid) != os.getpgrp()
