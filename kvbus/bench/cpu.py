"""CPU time of another process, thread by thread, in nanoseconds, as Linux counts it.

ZeroMQ's own threads are told apart by their names: what its I/O thread does is not Python's to change, but has to be paid for.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from kvbus.bench.processes import BenchError

__all__ = ["CpuTime", "anonymous_bytes", "cpu_time", "resident_bytes", "settled_cpu_time"]

_PROC = Path("/proc")


class CpuTime(msgspec.Struct, frozen=True):
    """CPU time used so far, nanoseconds.

    Attributes:
        main_ns: By all threads that run the program.
        io_ns: By ZeroMQ's I/O threads.
    """

    main_ns: int
    io_ns: int

    @property
    def total_ns(self) -> int:
        """By all threads."""
        return self.main_ns + self.io_ns

    def since(self, earlier: CpuTime) -> CpuTime:
        """Return what was used since an earlier reading."""
        return CpuTime(self.main_ns - earlier.main_ns, self.io_ns - earlier.io_ns)


def cpu_time(pid: int) -> CpuTime:
    """Read what a process has used so far; threads that have ended are not in it.

    Args:
        pid: The process.

    Raises:
        BenchError: It has ended, or the system does not tell.
    """
    main_ns = io_ns = 0
    try:
        for task in (_PROC / str(pid) / "task").iterdir():
            try:
                used_ns = int((task / "schedstat").read_bytes().split()[0])
                name = (task / "comm").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                if task.parent.exists() and not task.exists():
                    continue  # a thread that has just ended
                raise
            if name.startswith(b"ZMQbg/"):
                io_ns += used_ns
            else:
                main_ns += used_ns
    except (OSError, IndexError, ValueError) as error:
        raise BenchError(f"the CPU time of threads cannot be read, which takes Linux: {error}") from None
    return CpuTime(main_ns, io_ns)


def settled_cpu_time(pid: int, within_s: float = 1.0) -> CpuTime:
    """Read it once the process has come to rest: the kernel books time when a thread leaves the CPU.

    Args:
        pid: The process.
        within_s: When to take what there is, seconds.

    Raises:
        BenchError: As `cpu_time`.
    """
    end_s = time.monotonic() + within_s
    last = cpu_time(pid)
    while time.monotonic() < end_s:
        time.sleep(0.01)
        now = cpu_time(pid)
        if now.total_ns - last.total_ns < 100_000:  # one look at its timers, if at all
            return now
        last = now
    return last


def resident_bytes(pid: int) -> int:
    """Return how much of a process is in memory.

    Args:
        pid: The process.

    Raises:
        BenchError: It has ended, or the system does not tell.
    """
    try:
        pages = int((_PROC / str(pid) / "statm").read_bytes().split()[1])
    except (OSError, IndexError, ValueError) as error:
        raise BenchError(f"the memory of a process cannot be read, which takes Linux: {error}") from None
    return pages * os.sysconf("SC_PAGE_SIZE")


def anonymous_bytes() -> int:
    """Return how much memory this process itself has in use, without files that it looks into.

    Raises:
        BenchError: The system does not tell.
    """
    try:
        for line in (_PROC / "self" / "status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError as error:
        raise BenchError(f"the memory of a process cannot be read, which takes Linux: {error}") from None
    raise BenchError("the memory of a process cannot be read: the system does not tell anonymous pages apart")
