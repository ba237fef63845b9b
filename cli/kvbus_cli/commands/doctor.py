"""`kvbus doctor`: look at endpoints or at a configuration, and say what is wrong and what to do."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kvbus_cli.curve_flags import CurveKey, ServerKey, curve_of, naming_curve_flags
from kvbus_cli.exits import Exit
from kvbus_cli.reporting import complain, reporting

if TYPE_CHECKING:
    from kvbus.doctor.diagnosis import Summary
    from kvbus.doctor.findings import Finding
    from kvbus.doctor.targets import Target
    from kvbus.errors import Problem
    from kvbus.security.keys import CurveConfig

__all__ = ["register"]

SECONDS_MAX = 86_400.0
"""A day: who wants to watch for longer wants metrics."""

WIDTH = (60, 120)
"""Narrowest and widest lines for people."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    endpoint: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ENDPOINT",
            help="Where events are published, as behind kvbus broker --worker: [ID=]ENDPOINT[,replay=ENDPOINT][,ranks=0-3].",
            show_default=False,
        ),
    ] = None,
    replay: Annotated[
        list[str] | None,
        typer.Option(
            "--replay",
            "--replay-endpoint",
            metavar="ENDPOINT",
            help="Where lost batches can be asked for; one for each ENDPOINT, in the same order.",
        ),
    ] = None,
    topic: Annotated[
        str, typer.Option(metavar="TOPIC", help="Topic that a reader asks for: exact, or a prefix with a trailing *.")
    ] = "",
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Look at everything in this configuration of kvbus broker: workers and views."
        ),
    ] = None,
    engine_config: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="Look at the engine that was started with this JSON behind vLLM's --kv-events-config."
        ),
    ] = None,
    engine_host: Annotated[
        str, typer.Option(metavar="HOST", help="Where that engine runs, if it binds every interface.")
    ] = "127.0.0.1",
    engine_ranks: Annotated[int, typer.Option(metavar="N", help="Its data-parallel ranks, each on port + rank.")] = 1,
    router: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Say what this router makes of it: vllm, dynamo, llm-d, vllm-router, smg, aibrix."
        ),
    ] = "",
    seconds: Annotated[
        float, typer.Option(metavar="S", help="Listen for at most S seconds; it ends once every question is answered.")
    ] = 10.0,
    batches: Annotated[int, typer.Option(metavar="N", help="So many batches of each endpoint are enough.")] = 100,
    curve_key: CurveKey = None,
    server_key: ServerKey = None,
    listen: Annotated[
        bool,
        typer.Option(
            "--listen",
            help="Listen where nobody does, to find a publisher that connects; an engine that starts then finds its port taken.",
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line: targets, then findings.")] = False,
) -> None:
    """Say why events do not come, or what is wrong with those that do.

    Everything is listened to for a short time, whatever its topic; nothing is published. Each finding says what was seen, what it
    means and what to do. Exit code 0: all is well, warnings included. 1: there are problems. 2: a flag is wrong.
    """
    with reporting():
        curve = curve_of(curve_key, server_key)
        subject = _Subject(endpoint or [], replay or [], topic, config, engine_config, engine_host, engine_ranks, curve)
        targets, findings = subject.read(list(_number_problems(router, topic, seconds, batches)))

        from kvbus.doctor.diagnosis import diagnose, summarise
        from kvbus.doctor.examination import Effort, examine
        from kvbus.doctor.findings import Severity
        from kvbus_cli.signals import StopSignal

        if sys.stderr.isatty() and targets:
            complain(f"looking at {_plural(len(targets), 'endpoint')} for up to {seconds:g} s; Ctrl-C ends it early")
        with StopSignal() as stop:
            effort = Effort(seconds=seconds, batches=batches, listens=listen)
            with naming_curve_flags():
                evidences = examine(targets, effort, is_told_to_stop=lambda: stop.is_told)
        findings += diagnose(evidences, router)
        summaries = [summarise(evidence) for evidence in evidences]
        for line in _json_lines(summaries, findings) if json else _lines(summaries, findings):
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        counts = {severity: sum(each.severity is severity for each in findings) for severity in Severity}
        said = ", ".join(_plural(count, each.value) for each, count in counts.items() if count)
        complain(said or "all is well")
        if counts[Severity.PROBLEM]:
            raise typer.Exit(Exit.FAILED)


class _Subject(NamedTuple):
    """What is to be looked at, as typed."""

    endpoints: Sequence[str]
    replays: Sequence[str]
    topic: str
    config: Path | None
    engine_config: str | None
    engine_host: str
    engine_ranks: int
    curve: CurveConfig | None

    def read(self, problems: list[Problem]) -> tuple[list[Target], list[Finding]]:
        """Return what to look at, and what is wrong with it as it stands.

        Args:
            problems: What is wrong with other flags.

        Raises:
            ConfigError: All that is wrong.
        """
        from kvbus.errors import ConfigError

        targets: list[Target] = []
        findings: list[Finding] = []
        try:
            if bool(self.endpoints) + (self.config is not None) + (self.engine_config is not None) != 1:
                reason = "give endpoints, or --config, or --engine-config"
                raise ConfigError([_problem("ENDPOINT", " ".join(self.endpoints), reason)])
            if self.replays and len(self.replays) != len(self.endpoints):
                reason = f"must be given once for each ENDPOINT ({len(self.endpoints)} here), in the same order"
                raise ConfigError([_problem("--replay", " ".join(self.replays), reason)])
            if self.config is not None:
                targets = _of_broker(self.config, self.curve)
            elif self.engine_config is not None:
                targets, findings = _of_engine(
                    self.engine_config, self.engine_host, self.engine_ranks, self.topic, self.curve
                )
            else:
                targets = _of_endpoints(self.endpoints, self.replays, self.topic, self.curve)
            problems = [*problems, *_target_problems(targets)]
        except ConfigError as error:
            problems = [*problems, *error.problems]
        if problems:
            raise ConfigError(problems)
        return targets, findings


def _problem(field: str, value: str, reason: str) -> Problem:
    from kvbus.errors import Problem

    return Problem(field, value, reason)


def _number_problems(router: str, topic: str, seconds: float, batches: int) -> Iterator[Problem]:
    """Yield what is wrong with flags that stand for themselves."""
    from kvbus.doctor.routers import ROUTERS
    from kvbus.errors import UsageError
    from kvbus.wire.topics import TopicFilter

    if router and router not in ROUTERS:
        yield _problem("--router", router, f"must be one of {', '.join(ROUTERS)}")
    if not 0 < seconds <= SECONDS_MAX:
        yield _problem("--seconds", str(seconds), f"must be more than 0 and at most {SECONDS_MAX:g}")
    if batches < 1:
        yield _problem("--batches", str(batches), "must be at least 1")
    try:
        TopicFilter(topic)
    except UsageError as error:
        yield _problem("--topic", ascii(topic), str(error))


def _of_endpoints(
    endpoints: Sequence[str], replays: Sequence[str], topic: str, curve: CurveConfig | None
) -> list[Target]:
    """Read endpoints as typed.

    Raises:
        ConfigError: All that is wrong with them.
    """
    import msgspec

    from kvbus.config import parse_worker
    from kvbus.doctor.targets import worker_targets
    from kvbus.errors import ConfigError

    problems: list[Problem] = []
    workers = []
    for index, text in enumerate(endpoints):
        try:
            worker = parse_worker(text, "ENDPOINT")
            if replays and worker.replay_endpoint is not None:
                raise ConfigError([_problem("--replay", replays[index], "ENDPOINT has replay= already")])
            if replays:
                worker = msgspec.structs.replace(worker, replay_endpoint=replays[index])
                problems += worker.problems("ENDPOINT", "--replay")
            workers.append(worker)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return worker_targets(workers, topic, curve)


def _of_broker(path: Path, curve: CurveConfig | None) -> list[Target]:
    """Read a broker's configuration, as the broker does: the environment counts more than the file.

    Raises:
        ConfigError: All that is wrong with it.
    """
    import msgspec

    from kvbus.discovery.lookups import look_everywhere
    from kvbus.doctor.targets import broker_targets
    from kvbus_cli.broker_settings import BrokerSettings

    config = BrokerSettings(path=path, variables=os.environ).load()
    found, problems = look_everywhere(config.discovery)
    for problem in problems:
        complain(f"warning: {problem}")
    config = msgspec.structs.replace(config, workers=config.workers + found)
    return broker_targets(config, curve)


def _of_engine(
    text: str, host: str, ranks: int, topic: str, curve: CurveConfig | None
) -> tuple[list[Target], list[Finding]]:
    """Read an engine's own configuration.

    Raises:
        ConfigError: It cannot be read.
    """
    import msgspec

    from kvbus.doctor.engine_settings import engine_findings, engine_targets
    from kvbus.settings.engine import parse_engine_config

    config = parse_engine_config(text)
    targets = engine_targets(config, host, ranks)
    seen = [msgspec.structs.replace(each, topic=topic or each.topic, curve=curve) for each in targets]
    return seen, list(engine_findings(config))


def _target_problems(targets: Sequence[Target]) -> Iterator[Problem]:
    """Yield endpoints that cannot be looked at from another process."""
    for target in targets:
        for endpoint in (target.endpoint, target.replay):
            if endpoint is None:
                continue
            if endpoint.transport == "inproc":
                yield _problem(
                    endpoint.field, str(endpoint), "inproc is within one process; nobody else can look at it"
                )
            elif endpoint.port == 0:
                yield _problem(endpoint.field, str(endpoint), "name the port; 0 is whichever is free")
            elif endpoint is target.replay and endpoint.is_wildcard:
                yield _problem(
                    "--replay", str(endpoint), "a wildcard can be bound only; name the host of the publisher"
                )


def _json_lines(summaries: Sequence[Summary], findings: Sequence[Finding]) -> Iterator[str]:
    """Render for programs."""
    import msgspec

    rows: list[dict[str, Any]] = [{"target": summary} for summary in summaries]
    rows += [{"finding": finding} for finding in findings]
    for row in rows:
        yield msgspec.json.encode(row).decode()


def _lines(summaries: Sequence[Summary], findings: Sequence[Finding]) -> Iterator[str]:
    """Render for people: what was seen, then what is to be said about it."""
    width = min(max(shutil.get_terminal_size((WIDTH[1], 0)).columns, WIDTH[0]), WIDTH[1])
    for summary in summaries:
        yield from textwrap.wrap(_facts(summary), width, subsequent_indent="  ")
    for finding in findings:
        yield ""
        text = f"{finding.severity.value.upper()} {finding.cause.value}: {finding.where}: {finding.seen}"
        yield from textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)
        yield from textwrap.wrap(finding.means, width, initial_indent="  means  ", subsequent_indent=" " * 9)
        if finding.do:
            yield from textwrap.wrap(
                finding.do, width, initial_indent="  do     ", subsequent_indent=" " * 9, break_on_hyphens=False
            )


def _facts(summary: Summary) -> str:
    """Say in a line what was seen of a target."""
    if not summary.batches:
        state = "connected, nothing heard" if summary.is_connected else "not connected"
        parts = [state]
    else:
        parts = [f"{_plural(summary.batches, 'batch', 'batches')} in {summary.seconds:g} s"]
    if summary.engine:
        parts.insert(0, f"written as by {summary.engine}")
    if summary.topics:
        parts.append(f"topics {', '.join(map(repr, list(summary.topics)[:4]))}")
    if summary.ranks:
        parts.append(f"ranks {', '.join('none' if rank is None else str(rank) for rank in summary.ranks[:16])}")
    if summary.tiers:
        parts.append("stores " + ", ".join(f"{count} {tier}" for tier, count in list(summary.tiers.items())[:8]))
    if summary.block_sizes:
        parts.append(f"blocks of {', '.join(map(str, summary.block_sizes[:8]))} tokens")
    if summary.replay_answers is not None:
        parts.append("replay answers" if summary.replay_answers else "replay does not answer")
    named = "" if summary.name == summary.endpoint else f" ({summary.endpoint})"
    return f"{summary.name}{named}: {'; '.join(parts)}"


def _plural(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"
