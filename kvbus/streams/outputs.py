"""What a `StreamReceiver` says: batches in order, questions for the replay endpoint, and declared losses.

Outputs are to be handled in the order in which they stand in the list. `Lost` and `NewEpoch` come before the `Deliver` that they
are about, so a caller that clears on them never applies a batch to state that it no longer may trust.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

__all__ = [
    "AskReplay",
    "CancelReplay",
    "Conflict",
    "Deliver",
    "DropReason",
    "Dropped",
    "EpochReason",
    "Lost",
    "LostReason",
    "NewEpoch",
    "StreamOutput",
]

LostReason: TypeAlias = Literal[
    "no_replay",  # a gap, and there is no replay endpoint to ask
    "joined_late",  # the same before the stream's first batch: what went before cannot be had
    "evicted",  # the replay began above the number asked for
    "absent",  # two replays in turn went past these numbers without bringing them
    "silent",  # the replay endpoint did not answer
    "hold_time",  # batches were held for as long as they may be
    "unreadable",  # the batch came and its envelope cannot be read
    "unverified",  # after a reconnect nobody could say whether this is still the same life of the publisher
    "conflict",  # two publishers without a replay endpoint: it cannot be told whose batches were refused
]
"""Why numbers are given up. With `unverified` and `conflict` the range may be empty: no number is missing, yet a batch may be."""

EpochReason: TypeAlias = Literal[
    "went_back",  # a live number went back
    "changed",  # a replay says other bytes under a number that was delivered
    "missing",  # a replay no longer has the last batch delivered, though it may not have let it go
]
"""How a restart was noticed."""

DropReason: TypeAlias = Literal[
    "duplicate",  # delivered before, or held already
    "hold_full",  # no room to hold it; it will be asked for again
    "unproven",  # it may belong to another life of the publisher; used once a replay vouches for it, else asked for again
    "conflict",  # it comes from a second publisher, or from the first: see the loss of that name
    "stale_replay",  # a reply to a request that is over
]
"""Why a batch was not used. None of these loses anything by itself: what it may lose is declared besides."""


class Deliver(msgspec.Struct, frozen=True):
    """The next batch.

    Attributes:
        seq: Its number; the one after the last `Deliver` or `Lost` of this epoch.
        payload: Its bytes.
        replayed: Whether a replay brought it.
    """

    seq: int
    payload: bytes
    replayed: bool = False


class AskReplay(msgspec.Struct, frozen=True):
    """Send a replay request, on a connection of its own.

    A fresh DEALER per request keeps replies of an abandoned one apart; one request is open per stream at any time. A caller that
    has no connection to spare says `StreamReceiver.deferred`.

    Attributes:
        start_seq: Number to ask from. It is the last one delivered where there is one, so as to compare it.
        request: Identifies the request; to be passed in with its replies.
    """

    start_seq: int
    request: int


class CancelReplay(msgspec.Struct, frozen=True):
    """Forget a request: close its connection and throw unread replies away.

    Attributes:
        request: Which.
    """

    request: int


class Lost(msgspec.Struct, frozen=True):
    """A declared loss: these numbers are not going to be delivered (S5).

    Attributes:
        start_seq: First number lost.
        stop_seq: The number after the last one lost; equal to `start_seq` when no number is missing (`unverified`, `conflict`).
        reason: Why.
        is_before_first: Nothing of this epoch has been delivered yet, so there is nothing to clear.
    """

    start_seq: int
    stop_seq: int
    reason: LostReason
    is_before_first: bool = False


class NewEpoch(msgspec.Struct, frozen=True):
    """The publisher has restarted: a declared loss, and numbers begin anew.

    Attributes:
        old_position: The number that was wanted next.
        reason: How it was noticed.
    """

    old_position: int
    reason: EpochReason


class Conflict(msgspec.Struct, frozen=True):
    """Two publishers seem to send on this stream. An alarm to count and to log, once per dispute; refused batches are `Dropped`.

    Attributes:
        seq: A number that came with bytes of another publisher.
    """

    seq: int


class Dropped(msgspec.Struct, frozen=True):
    """A batch that was not used, to be counted.

    Attributes:
        reason: Why.
        seq: Its number.
    """

    reason: DropReason
    seq: int


StreamOutput: TypeAlias = Deliver | AskReplay | CancelReplay | Lost | NewEpoch | Conflict | Dropped
"""Anything that a receiver can say."""
