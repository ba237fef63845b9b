"""The exception tree. An exception assigns blame; what the network does is a value.

```
KvbusError
├── ConfigError(problems)              start-up only; carries every bad field at once; reach: this process
├── UsageError                         the caller's fault: closed, too large, wrong order; reach: this call
└── WireError(path, reason)            the sender's fault: bytes that cannot be read
    ├── FrameError                     frame count, topic or sequence frame; reach: this message
    └── DecodeError                    the payload; reach: this batch
```

A gap, a restart, a slow reader or a dead worker is never an exception: it is returned or emitted, with fields. Nothing here
ever quotes token ids, because they are prompt content.
"""

from __future__ import annotations

from typing import NamedTuple


class KvbusError(Exception):
    """Base of every error that kvbus raises on purpose."""


class Problem(NamedTuple):
    """One thing wrong with a configuration.

    Attributes:
        field: Flag, key or field as the user typed it, for example `--worker` or `views[0].topic`.
        value: The offending value as text.
        reason: What is wrong and what would be right, without a full stop.
    """

    field: str
    value: str
    reason: str

    def __str__(self) -> str:
        """Return `field: reason (got value)`, or without what was got where that is nothing."""
        return f"{self.field}: {self.reason} (got {self.value!r})" if self.value else f"{self.field}: {self.reason}"


class ConfigError(KvbusError):
    """A configuration cannot work. Raised at start-up only, with every problem found.

    Attributes:
        problems: All problems, in the order of the fields; never empty.
    """

    def __init__(self, problems: list[Problem]) -> None:
        """Keep the problems and show one a line.

        Args:
            problems: What is wrong; at least one.
        """
        self.problems = problems
        super().__init__("\n".join(map(str, problems)))


class UsageError(KvbusError):
    """The caller broke a rule of the interface: closed object, oversized value, wrong order of calls."""


class WireError(KvbusError):
    """Bytes that cannot be read as what they claim to be.

    Attributes:
        path: Where in the payload, as `$[1][0].block_hashes`, or the frame, as `frame[1]`.
        reason: What is wrong, in words; quotes at most 64 bytes and never token ids.
    """

    def __init__(self, path: str, reason: str) -> None:
        """Keep where and why.

        Args:
            path: Position of the fault.
            reason: What is wrong.
        """
        self.path = path
        self.reason = reason
        super().__init__(f"{reason} at {path}")


class FrameError(WireError):
    """A multipart message whose frames are not `[topic, seq:8 BE, payload]` or a replay form. Reach: this message."""


class DecodeError(WireError):
    """A payload whose envelope cannot be read. Reach: this batch, which counts as lost if it was numbered."""
