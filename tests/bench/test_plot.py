"""A picture is refused before anything is measured, or drawn."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest

from kvbus.bench.plot import check_plot, draw_cases, draw_curves
from kvbus.errors import ConfigError
from tests.bench.test_report import CASE


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Takes the place of matplotlib, which the tests do not install: the figure that is drawn on."""
    figure = MagicMock()
    figure.canvas.get_supported_filetypes.return_value = {"png": "", "svg": ""}
    figure.subplots.side_effect = lambda down, across, squeeze: [
        [MagicMock() for _ in range(across)] for _ in range(down)
    ]
    modules = {name: ModuleType(name) for name in ("matplotlib", "matplotlib.backends")}
    modules["matplotlib.backends.backend_agg"] = MagicMock()
    modules["matplotlib.figure"] = MagicMock(Figure=MagicMock(return_value=figure))
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return figure


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, before an hour of measuring."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(ConfigError, match=r"--plot: needs matplotlib: pip install 'kvbus\[plot\]'"):
        check_plot("a.png")


@pytest.mark.parametrize("path", ["figure", "figure.doc"])
def test_a_kind_that_cannot_be_drawn_is_refused(drawn: Any, path: str) -> None:
    """Likewise."""
    check_plot("figure.svg")
    with pytest.raises(ConfigError, match=r"must end in one of \.png, \.svg"):
        check_plot(path)


def test_cases_are_drawn_into_the_file(drawn: Any) -> None:
    """Two fields: CPU and drain rate."""
    draw_cases([CASE], "figure.png")
    drawn.savefig.assert_called_once()


def test_curves_are_drawn_into_the_file(drawn: Any) -> None:
    """One field a quantity, at most three in a row."""
    draw_curves({name: ("µs", {"kvbus": [(1.0, 2.0), (2000.0, 3.0)]}) for name in "abcd"}, "figure.png")
    assert (2, 3) == drawn.subplots.call_args.args
    drawn.savefig.assert_called_once()
