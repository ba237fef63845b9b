"""Findings about whether somebody is there at all, and whether it is who was expected."""

from __future__ import annotations

from collections.abc import Iterator

from kvbus.doctor.evidence import PUBLISHING, Contact, Evidence, Knock
from kvbus.doctor.findings import Cause, Finding, Severity
from kvbus.doctor.targets import Role
from kvbus.doctor.zmtp import Stage

__all__ = ["reach_findings", "who_answered"]

_LISTENING = ("SUB", "XSUB")

ENABLE = """--kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:PORT"}'"""


def reach_findings(evidence: Evidence) -> Iterator[Finding]:
    """Say why nothing can come from a target; nothing where it can.

    Args:
        evidence: What was seen of it.
    """
    target = evidence.target
    where = str(target.endpoint) if target.name == str(target.endpoint) else f"{target.name} ({target.endpoint})"
    if target.role is Role.INGEST:
        yield from _ingest(evidence, where)
    elif target.binds and evidence.knock is None:
        if not evidence.is_reached:
            yield _nobody_connects(evidence, where)
    elif evidence.bind_error:
        yield _cannot_bind(evidence, where)
    elif evidence.callers:
        yield Finding(
            cause=Cause.BOTH_CONNECT,
            severity=Severity.PROBLEM,
            where=where,
            seen=f"nobody listened at {target.endpoint.url}, and when the doctor did, a publisher connected to it",
            means="the publisher connects, and so does who reads from it: both connect, and nobody binds",
            do=f"let one side bind: the engine with a wildcard host (tcp://*:{target.endpoint.port}), or the broker with "
            f"--worker bind:{target.endpoint.url}",
        )
    elif evidence.knock is not None and not evidence.is_reached:
        yield from _knocked(evidence, evidence.knock, where)
    elif evidence.knock is not None and evidence.knock.socket_type not in ("", *PUBLISHING):
        yield _wrong_socket(evidence.knock, where)


def who_answered(knock: Knock) -> str:
    """Say in words who answered, where somebody did."""
    greeting = knock.greeting
    if greeting is None or greeting.stage is Stage.BEGUN:
        return "somebody that does not finish its greeting"
    if greeting.stage is Stage.FOREIGN:
        return f"something that is not ZeroMQ and says {greeting.opening!r}"
    if greeting.stage is Stage.SECURED:
        return f"a ZeroMQ socket with {greeting.mechanism}"
    if greeting.stage is Stage.KNOWN:
        return _a(greeting.socket_type)
    return "a ZeroMQ socket that does not say what it is"


def _a(socket_type: str) -> str:
    """`a ROUTER socket`, `an XPUB socket`."""
    return f"{'an' if socket_type.startswith('X') else 'a'} {socket_type} socket"


def _knocked(evidence: Evidence, knock: Knock, where: str) -> Iterator[Finding]:
    """Say why a connecting reader gets nowhere."""
    target, greeting = evidence.target, knock.greeting
    if knock.contact is Contact.UNRESOLVED:
        yield Finding(
            cause=Cause.NAME_UNRESOLVED,
            severity=Severity.PROBLEM,
            where=where,
            seen=f"the name {target.endpoint.host!r} does not resolve: {knock.detail}",
            means="ZeroMQ goes on trying in silence; nothing will come until the name is known here",
            do="check the spelling and the namespace (a headless Service gives pods names), or give the address itself",
        )
    elif knock.contact is Contact.REFUSED:
        yield _refused(evidence, knock, where)
    elif knock.contact is Contact.UNREACHABLE:
        yield Finding(
            cause=Cause.UNREACHABLE,
            severity=Severity.PROBLEM,
            where=where,
            seen=f"no connection to {target.endpoint.url}: {knock.detail}",
            means="the machine is down, the address is another one, or a firewall or NetworkPolicy drops what is sent there",
            do="check the address, and that the port is open from here",
        )
    elif greeting is not None and greeting.stage is Stage.FOREIGN:
        yield Finding(
            cause=Cause.NOT_ZEROMQ,
            severity=Severity.PROBLEM,
            where=where,
            seen=f"at {target.endpoint.url} listens {who_answered(knock)}",
            means="this is the port of another service; an engine's HTTP port is not that of its events",
            do="give the port of --kv-events-config's endpoint (5557 by convention)",
        )
    elif greeting is not None and greeting.stage is Stage.SECURED:
        yield _secured(greeting.mechanism, evidence, where)
    elif greeting is not None and greeting.stage is Stage.KNOWN and greeting.socket_type not in PUBLISHING:
        yield _wrong_socket(knock, where)
    elif greeting is not None and greeting.stage is Stage.KNOWN and target.curve is not None:
        yield _secured(greeting.mechanism, evidence, where)
    else:
        did = "closed it again" if knock.contact is Contact.CLOSED else "said nothing that ends a greeting"
        yield Finding(
            cause=Cause.HANDSHAKE_UNFINISHED,
            severity=Severity.PROBLEM,
            where=where,
            seen=f"{target.endpoint.url} took the connection and {did}",
            means="what listens there is not ZeroMQ, hangs, or stands behind a proxy whose backend is gone",
            do="check who has that port (ss -ltnp), and whether a proxy or a Service without endpoints is in between",
        )


def _refused(evidence: Evidence, knock: Knock, where: str) -> Finding:
    """Nobody listens there."""
    target, nearby = evidence.target, evidence.publisher_nearby
    seen = f"nobody listens at {target.endpoint.url}: {knock.detail}"
    if target.role is Role.VIEW:
        means = "the broker does not run, or not with this configuration"
        do = "start kvbus broker with this configuration, and ask again"
    elif nearby is not None:
        seen += f"; a publisher answers at {nearby.url}"
        means = "the port is wrong, or the engine that should be there is not up"
        do = f"try {nearby.url}"
    else:
        means = (
            "the port is another one, or the engine is not up yet, or its KV events are off, or it connects too (a vLLM endpoint "
            "without * does) and both sides wait for each other"
        )
        enable = ENABLE.replace("PORT", str(target.endpoint.port or 5557))
        do = (
            f"switch events on and let the engine bind: {enable}; its rank r is on port + r. --listen finds out whether it "
            "connects"
        )
    return Finding(cause=Cause.NOBODY_LISTENS, severity=Severity.PROBLEM, where=where, seen=seen, means=means, do=do)


def _secured(mechanism: str, evidence: Evidence, where: str) -> Finding:
    """One side has a security mechanism, and the other has none, or does not know its key."""
    url, curve = evidence.target.endpoint.url, evidence.target.curve
    seen = f"{url} asks for {mechanism} in its greeting, and takes no plain connection"
    means = "the publisher is secured, and who reads from it has no keys"
    do = "give the reader the publisher's public key and keys of its own (--server-key, --curve-key; workers: server_key)"
    if mechanism == "NULL":
        seen = f"{url} is plaintext, and there are keys for it"
        means = "the publisher is not secured, and a reader with keys does not talk to it"
        do = "secure the publisher, or leave its server_key out"
    elif curve is not None and evidence.refusals.get("refused"):
        seen = f"{url} asks for {mechanism} and refuses the reader's key"
        means = "the publisher has a list of clients, and this key is not on it" + (
            "" if curve.secret_key_file is not None else ": it was made for this run, since no --curve-key was given"
        )
        do = (
            "put the reader's public key (kvbus keys show) on the publisher's list (allow), or give a key that is on it"
        )
    elif curve is not None:
        seen = f"{url} asks for {mechanism}, and the handshake fails"
        means = "the server's key that the reader has is not the publisher's"
        do = "compare with kvbus keys show on the publisher's file; a new pair there needs to be known here"
    return Finding(cause=Cause.SECURITY_MISMATCH, severity=Severity.PROBLEM, where=where, seen=seen, means=means, do=do)


def _wrong_socket(knock: Knock, where: str) -> Finding:
    """Somebody listens there, and it is no publisher."""
    kind = knock.socket_type
    hints = {
        "ROUTER": ("this is a replay endpoint, not the one where events are published", "exchange the two endpoints"),
        "SUB": (
            "this is a reader: a broker's --ingest, or a consumer that has bound",
            "point publishers here, and the doctor at where they publish",
        ),
    }
    means, do = hints.get(kind, ("no events can come from a socket of that kind", "give the endpoint of a PUB socket"))
    return Finding(
        cause=Cause.WRONG_SOCKET,
        severity=Severity.PROBLEM,
        where=where,
        seen=f"{_a(kind)} answers where a PUB was expected",
        means=means,
        do=do,
    )


def _cannot_bind(evidence: Evidence, where: str) -> Finding:
    """The listening side was to bind, and could not."""
    knock, endpoint = evidence.knock, evidence.target.endpoint
    if knock is not None and knock.socket_type in PUBLISHING:
        return Finding(
            cause=Cause.BOTH_BIND,
            severity=Severity.PROBLEM,
            where=where,
            seen=f"port {endpoint.port} is in use here, by {_a(knock.socket_type)}: the publisher has bound it",
            means="the publisher binds, and so would who reads from it (a wildcard host or bind: binds): both bind",
            do=f"let the reader connect: connect:tcp://127.0.0.1:{endpoint.port}, or the publisher's host",
        )
    who = "" if knock is None or knock.greeting is None else f"; {who_answered(knock)} is there"
    return Finding(
        cause=Cause.CANNOT_BIND,
        severity=Severity.PROBLEM,
        where=where,
        seen=f"{endpoint.url} cannot be bound: {evidence.bind_error}{who}",
        means="whoever is to listen there cannot; publishers that connect to it reach somebody else or nobody",
        do="end what has the port, or choose another one on both sides",
    )


def _nobody_connects(evidence: Evidence, where: str) -> Finding:
    """The listening side has bound, and nobody came."""
    failed = sum(evidence.refusals.values())
    refused = f", and {failed} tried and failed in the handshake" if failed else ""
    endpoint = evidence.target.endpoint
    return Finding(
        cause=Cause.NOBODY_CONNECTS,
        severity=Severity.PROBLEM,
        where=where,
        seen=f"the doctor listened at {endpoint.url} for {evidence.seconds:.1f} s, and no publisher connected{refused}",
        means="the publisher binds somewhere itself (both bind), connects to another address, is not up, or its events are off",
        do=f"let the publisher connect here (vLLM: an endpoint without *, such as tcp://HOST:{endpoint.port}), or name the "
        f"publisher's own address here instead of a wildcard or bind:",
    )


def _ingest(evidence: Evidence, where: str) -> Iterator[Finding]:
    """A broker should listen there for workers."""
    knock = evidence.knock
    if knock is None or (knock.contact is Contact.GREETED and knock.socket_type in _LISTENING):
        return
    if knock.contact is Contact.GREETED:
        secured = knock.greeting is not None and knock.greeting.stage is Stage.SECURED
        seen = f"{who_answered(knock)} answers where the broker's ingest was expected"
        if not secured:
            yield Finding(
                cause=Cause.WRONG_SOCKET,
                severity=Severity.PROBLEM,
                where=where,
                seen=seen,
                means="another process has the port of --ingest, and workers that connect there talk to it",
                do="end it, or choose another port for --ingest and the workers",
            )
        return
    yield Finding(
        cause=Cause.NOBODY_LISTENS,
        severity=Severity.PROBLEM,
        where=where,
        seen=f"nobody listens at {evidence.target.endpoint.url}: {knock.detail or knock.contact.value}",
        means="the broker does not run, or not with this configuration; workers that connect wait for it",
        do="start kvbus broker with this configuration, and ask again",
    )
