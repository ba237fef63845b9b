"""Prints, at the end of a run, how right the consumers were."""

from __future__ import annotations

import pytest

from tests.interop import table


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in table.lines():
        terminalreporter.write_line(line)
