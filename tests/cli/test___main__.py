"""The first moments of `kvbus`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path


def test_ctrl_c_while_modules_load_says_nothing(tmp_path: Path) -> None:
    """A typer that takes long to load, and somebody who does not want to wait for it."""
    (tmp_path / "typer.py").write_text(
        "import os, signal, select\nos.kill(os.getpid(), signal.SIGINT)\nselect.select([], [], [], 60)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2] / "cli")])
    done = subprocess.run(
        [sys.executable, "-m", "kvbus_cli", "--help"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert (-signal.SIGINT, "", "") == (done.returncode, done.stdout, done.stderr)


def test_a_script_that_ignores_ctrl_c_goes_on_doing_so() -> None:
    """What a shell starts in the background of a script has it ignored."""
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.argv = ['kvbus', '--version']\n"
        "from kvbus_cli.__main__ import run\ntry:\n    run()\nexcept SystemExit:\n"
        "    print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "True" == done.stdout.splitlines()[-1]
