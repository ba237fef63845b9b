"""Child processes are waited for until they are ready, and never outlive the one who started them."""

from __future__ import annotations

import pytest

from kvbus_cli.children import Child, ChildError

BROKER = ["broker", "--worker", "tcp://127.0.0.1:9", "--pub", "tcp://127.0.0.1:0", "--replay", "tcp://127.0.0.1:0"]


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
    with Child("tail", ["tail", "nonsense"], tmp_path) as child, pytest.raises(ChildError, match="nonsense"):
        child.finish()
