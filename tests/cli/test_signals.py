"""A command hears SIGTERM and Ctrl-C, and gives the signals back."""

from __future__ import annotations

import os
import signal

import pytest

from kvbus_cli.signals import StopSignal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait(number):
    before = signal.getsignal(number)
    with StopSignal() as stop_signal:
        assert not stop_signal.is_told
        os.kill(os.getpid(), number)
        stop_signal.wait(None, lambda seconds: pytest.fail("it waited on"))
        assert stop_signal.is_told
    assert before == signal.getsignal(number)


def test_the_time_limit_ends_the_wait():
    waited = []
    with StopSignal() as stop_signal:
        stop_signal.wait(0.6, lambda seconds: waited.append(seconds) or False)
    assert 0.6 == pytest.approx(sum(waited))


def test_what_ends_by_itself_ends_the_wait():
    with StopSignal() as stop_signal:
        stop_signal.wait(None, lambda seconds: True)
        assert not stop_signal.is_told


def test_what_fails_is_raised():
    with StopSignal() as stop_signal, pytest.raises(ZeroDivisionError):
        stop_signal.wait(None, lambda seconds: 1 // 0)


def test_a_hangup_is_acted_on_by_the_waiting_thread_and_does_not_end_the_wait():
    """Once for several that come together; and again for the next."""
    before = signal.getsignal(signal.SIGHUP)
    heard, turns = [], []

    def has_ended(seconds):
        turns.append(seconds)
        if len(turns) in {1, 3}:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGHUP)
        return len(turns) == 5

    with StopSignal(on_hangup=lambda: heard.append(len(turns))) as stop_signal:
        stop_signal.wait(None, has_ended)
    assert [1, 3] == heard
    assert before == signal.getsignal(signal.SIGHUP)


def test_without_a_use_for_it_a_hangup_is_left_alone():
    before = signal.getsignal(signal.SIGHUP)
    with StopSignal():
        assert before == signal.getsignal(signal.SIGHUP)
