"""The kernel's account of a process."""

from __future__ import annotations

import os
import time

import pytest
import zmq

from kvbus.bench.cpu import CpuTime, cpu_time, resident_bytes, settled_cpu_time
from kvbus.bench.processes import BenchError
from tests.machine import needs_linux

pytestmark = needs_linux

GONE = 2**22 + 1  # above the kernel's largest process id


def test_what_the_program_uses_is_seen() -> None:
    """At least what its own clock says, up to what is booked when it next leaves the CPU."""
    before, own_ns = cpu_time(os.getpid()), time.process_time_ns()
    while time.process_time_ns() < own_ns + 60_000_000:
        pass
    used = cpu_time(os.getpid()).since(before)
    assert used.main_ns > 30_000_000
    assert used.total_ns == used.main_ns + used.io_ns


def test_zeromq_threads_have_an_account_of_their_own(zmq_context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """They are known by their names."""
    with zmq_context.socket(zmq.XPUB) as publisher, zmq_context.socket(zmq.SUB) as subscriber:
        publisher.bind("tcp://127.0.0.1:0")
        subscriber.connect(publisher.getsockopt_string(zmq.LAST_ENDPOINT))
        subscriber.setsockopt(zmq.SUBSCRIBE, b"")
        assert publisher.poll(60_000)  # so that the I/O thread has done something
        assert cpu_time(os.getpid()).io_ns > 0


def test_it_waits_until_a_process_rests() -> None:
    """This one never does, so it takes what there is."""
    assert settled_cpu_time(os.getpid(), 0.0).total_ns > 0
    assert settled_cpu_time(os.getpid()).total_ns > 0


def test_memory_is_told() -> None:
    """An interpreter takes megabytes."""
    assert resident_bytes(os.getpid()) > 1 << 20


def test_a_process_that_is_gone_is_an_error() -> None:
    """Zero would look like a miracle."""
    with pytest.raises(BenchError, match="CPU time"):
        cpu_time(GONE)
    with pytest.raises(BenchError, match="memory"):
        resident_bytes(GONE)


def test_differences_are_taken_by_thread() -> None:
    """Each account alone."""
    assert CpuTime(3, 5) == CpuTime(10, 10).since(CpuTime(7, 5))
