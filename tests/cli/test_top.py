"""`kvbus top` without a terminal: what it prints, and how it ends."""

from __future__ import annotations

import msgspec
import pytest
from typer.testing import CliRunner, Result

from kvbus.ops.report import Report
from kvbus.ops.site import open_site
from kvbus_cli.exits import Exit
from kvbus_cli.main import app
from tests.ops.standin import StandIn


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["top", *arguments])


def test_one_frame_for_a_pipe() -> None:
    with open_site(StandIn(), "127.0.0.1:0") as site:
        for arguments in ((site.url,), ("--http", site.url.removeprefix("http://"), "--once")):
            result = run(*arguments, "--interval", "0.1")
            assert Exit.OK == result.exit_code, result.output
            assert "not ready" in result.stdout
            assert "never seen" in result.stdout
            assert "\x1b" not in result.stdout


def test_json_is_the_report() -> None:
    with open_site(StandIn(), "127.0.0.1:0") as site:
        result = run(site.url, "--json", "--once")
        assert Exit.OK == result.exit_code, result.output
        report = msgspec.json.decode(result.stdout, type=Report)
        assert {"pub:all": "tcp://127.0.0.1:1", "http": site.url} == report.endpoints


def test_nobody_there_is_a_failure_on_one_line() -> None:
    result = run("127.0.0.1:1", "--once")
    assert (Exit.FAILED, "") == (result.exit_code, result.stdout)
    assert "kvbus: 127.0.0.1:1 does not answer: Connection refused\n" == result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nonsense",), "HOST:PORT: expected HOST:PORT"),
        (("--http", "x"), "--http: expected HOST:PORT"),
        ((":1", "--http", ":2"), "given twice"),
        (("--interval", "0"), "--interval: must be 0.1 to 3600 seconds"),
        (("--interval", "nan"), "--interval"),
    ],
)
def test_bad_input_is_one_line_that_names_it(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert Exit.USAGE == result.exit_code
    assert words in result.stderr
    assert 1 == result.stderr.count("\n")
