"""Evidence made up for the tests of diagnoses: what a publisher may have said, without a socket."""

from __future__ import annotations

from typing import Any

import msgspec

from kvbus.doctor.answers import Answers
from kvbus.doctor.evidence import Contact, Evidence, Knock
from kvbus.doctor.findings import Cause, Finding
from kvbus.doctor.heard import Heard
from kvbus.doctor.targets import Role, Target
from kvbus.doctor.zmtp import Greeting, Stage
from kvbus.endpoints import Endpoint
from kvbus.events import BlockStored, Event
from kvbus.wire.envelope import join_batch
from kvbus.wire.frames import live_message
from kvbus.wire.writing import encode_event

NOW_S = 1_700_000_000.0

PUBLISHER = Knock(Contact.GREETED, Greeting(Stage.KNOWN, "NULL", "PUB"))
ROUTER = Knock(Contact.GREETED, Greeting(Stage.KNOWN, "NULL", "ROUTER"))
REFUSED = Knock(Contact.REFUSED, detail="connection refused")


def stored(block: int, **fields: Any) -> BlockStored:
    """A store of one described block."""
    return BlockStored([(1 << 62) + block], None, [block] * 4, 4, **({"medium": "GPU"} | fields))


def payload(*events: Event, rank: int | None = 0, ts: float = NOW_S, encoding: Any = "map") -> bytes:
    """One encoded batch."""
    return join_batch(ts, [encode_event(event, encoding) for event in events], rank)


def target(**options: Any) -> Target:
    """A worker at port 5557, with replay at 5558."""
    known = {
        "name": "w0",
        "endpoint": Endpoint.parse("tcp://10.0.0.1:5557"),
        "replay": Endpoint.parse("tcp://10.0.0.1:5558"),
    }
    return Target(**(known | options))


def heard(*batches: bytes, topic: bytes = b"kv", wanted: str = "", numbers: Any = None) -> Heard:
    """What was heard of a publisher that says these batches, numbered from 0 or as told."""
    found = Heard(wanted)
    for seq, batch in zip(numbers or range(len(batches)), batches, strict=True):
        found.take(live_message(topic, seq, batch), NOW_S)
    return found


def evidence(what: Heard | None = None, **options: Any) -> Evidence:
    """A publisher that was reached, and listened to for a second; its replay endpoint answers all is well."""
    answers = Answers()
    answers.start_seq, answers.batches, answers.has_ended, answers.is_old_form = 0, 1, True, False
    known = {
        "target": target(),
        "heard": what or Heard(),
        "seconds": 1.0,
        "knock": PUBLISHER,
        "connections": 1,
        "replay_knock": ROUTER,
        "answers": answers,
    }
    return Evidence(**(known | options))


def unreached(knock: Knock, **options: Any) -> Evidence:
    """A target at which nobody was met."""
    return evidence(knock=knock, connections=0, **options)


def with_role(role: Role) -> Target:
    """A target of another role."""
    return msgspec.structs.replace(target(), role=role)


def causes(findings: list[Finding]) -> list[Cause]:
    """Their causes, in order."""
    return [finding.cause for finding in findings]
