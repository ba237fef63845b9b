"""One program for every role."""

from __future__ import annotations

import importlib
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from kvbus.bench.child import ROLES, main
from tests.machine import needs_linux

pytestmark = needs_linux


@pytest.mark.parametrize("module", sorted(set(ROLES.values())))
def test_every_role_can_be_run(module: str) -> None:
    """The table names modules by text, so that only one is loaded."""
    assert callable(importlib.import_module(module).run)


def test_it_becomes_what_the_first_line_says() -> None:
    """And ends when its parent does."""
    to_child, from_parent = os.pipe()
    to_parent, from_child = os.pipe()
    os.write(from_parent, b'{"role":"sink"}\n')
    os.close(from_parent)
    main(to_child, from_child)
    assert b'{"ready":true}\n' == os.read(to_parent, 100)
    for end in (to_child, to_parent, from_child):
        os.close(end)


def test_without_a_first_line_it_ends() -> None:
    """A parent that died at once leaves nothing behind."""
    assert 0 == subprocess.run([sys.executable, "-m", "kvbus.bench.child"], input=b"", check=False).returncode


def test_a_role_that_never_looks_ends_with_its_parent() -> None:
    """`watch` does the looking for loops that have no time."""
    program = "import os, threading\nfrom kvbus.bench.child import watch\nfrom kvbus.bench.processes import Channel\n"
    program += "watch(Channel(0, 1))\nthreading.Event().wait()"
    assert 0 == subprocess.run([sys.executable, "-c", program], input=b"{}\n", check=False, timeout=60).returncode


def test_a_paused_child_of_a_killed_parent_is_gone(tmp_path: Path) -> None:
    """Nothing stays behind, whatever happens to a measurement."""
    program = (
        "import pathlib, sys\nfrom kvbus.bench.processes import Child\n"
        f"child = Child('sink', 'sink', pathlib.Path({str(tmp_path)!r}))\nchild.hear()\nchild.pause()\n"
        "print(child.pid, flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    assert [[child], [], []] == [list(each) for each in select.select([child], [], [], 60.0)]
    os.close(child)
