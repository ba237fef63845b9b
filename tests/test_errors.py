"""Errors name their place and reason, and show everything that is wrong at once."""

from __future__ import annotations

from kvbus.errors import ConfigError, DecodeError, FrameError, KvbusError, Problem, UsageError, WireError


def test_a_config_error_shows_every_problem_on_a_line_of_its_own():
    """One start tells the operator everything that is to be mended."""
    error = ConfigError([Problem("--pub", "x", "is no endpoint"), Problem("--age", "0", "must be more than 0")])
    assert "--pub: is no endpoint (got 'x')\n--age: must be more than 0 (got '0')" == str(error)
    assert ["--pub", "--age"] == [problem.field for problem in error.problems]


def test_a_wire_error_says_where_and_why():
    error = DecodeError("$[1][0].block_hashes", "no list")
    assert "no list at $[1][0].block_hashes" == str(error)
    assert ("$[1][0].block_hashes", "no list") == (error.path, error.reason)


def test_all_errors_have_one_base():
    """A caller that wants to go on whatever happens catches one class."""
    assert all(issubclass(kind, KvbusError) for kind in (ConfigError, UsageError, WireError, FrameError, DecodeError))
    assert issubclass(FrameError, WireError)
    assert issubclass(DecodeError, WireError)
