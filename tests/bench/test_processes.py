"""Children answer, fail and end as they should, and none stays behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvbus.bench.processes import BenchError, Channel, Child, Player


def test_objects_cross_a_channel_one_a_line() -> None:
    """Several in one read are told apart, and the end is seen."""
    read_fd, write_fd = os.pipe()
    reader, writer = Channel(read_fd, -1), Channel(-1, write_fd)
    writer.write({"a": 1})
    writer.write({"b": "x\ny"})
    assert [{"a": 1}, {"b": "x\ny"}] == [reader.read(), reader.read()]
    with pytest.raises(TimeoutError):
        reader.read(0)
    os.close(write_fd)
    assert reader.read() is None
    os.close(read_fd)


class _Echo(Player):
    """Knows one command, and has a method that is none."""

    COMMANDS = frozenset(("say",))

    def say(self, word: str) -> dict[str, str]:
        if not word:
            raise BenchError("nothing to say")
        return {"said": word}

    def other(self) -> None:
        raise AssertionError


def test_a_player_does_what_its_commands_name_and_nothing_else() -> None:
    """A line of JSON reaches no method that was not meant for it; what fails is told, and it goes on."""
    (parent_read, child_write), (child_read, parent_write) = os.pipe(), os.pipe()
    parent, child = Channel(parent_read, parent_write), Channel(child_read, child_write)
    parent.write({"do": "other"})
    parent.write({"do": "serve", "channel": 1})
    parent.write({"do": "say", "word": ""})
    parent.write({"do": "say", "word": "x"})
    os.close(parent_write)
    _Echo().serve(child)
    assert [
        {"ready": True},
        {"failed": "there is no command 'other'"},
        {"failed": "there is no command 'serve'"},
        {"failed": "nothing to say"},
        {"done": "say", "said": "x"},
    ] == [parent.read() for _ in range(5)]
    for each in (parent_read, child_write, child_read):
        os.close(each)


def test_a_child_answers_and_ends_with_its_stdin(tmp_path: Path) -> None:
    """That is how all of them go when the parent dies."""
    with Child("sink", "sink", tmp_path) as child:
        assert {"ready": True} == child.hear()
        assert {"done": "open"} == child.ask(do="open", subscribers=[])
        child.finish()
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_a_child_that_fails_is_quoted(tmp_path: Path) -> None:
    """The last line of a traceback says most."""
    with Child("sink", "nothing", tmp_path) as child:
        with pytest.raises(BenchError, match=r"sink has ended with 1: KeyError: 'nothing'"):
            child.hear()
        with pytest.raises(BenchError, match="has ended"):
            child.tell(do="open")


def test_a_child_that_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    """A stuck process ends the measurement, not the patience."""
    with Child("sink", "sink", tmp_path) as child:
        child.hear()
        child.pause()
        child.tell(do="open", subscribers=[])
        with pytest.raises(BenchError, match="sink has said nothing for 0 s"):
            child.hear(0)
        child.go_on()
        assert {"done": "open"} == child.hear()


def test_what_a_child_reports_as_failed_is_an_error(tmp_path: Path) -> None:
    """It goes on all the same."""
    with Child("load", "loader", tmp_path, options={"workers": 1, "events": 1}, workers=[]) as child:
        child.hear()
        assert {"done": "open", "urls": {}} == child.ask(do="open", url="")
    with Child("sink", "sink", tmp_path) as child:
        child.hear()
        child.ask(do="open", subscribers=[["tcp://127.0.0.1:9"]])
        with pytest.raises(BenchError, match="sink: subscribers have heard nothing"):
            child.ask(do="watch", marks=1, timeout_s=0.0)
