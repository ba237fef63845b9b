"""`kvbus broker`: join workers, release what all of them have emitted, publish it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvbus_cli.reporting import reporting

if TYPE_CHECKING:
    from kvbus.config import BrokerConfig, IngestConfig

__all__ = ["register"]

LEVELS = ("debug", "info", "warning", "error")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("broker")(broker)


def broker(
    worker: Annotated[
        list[str] | None,
        typer.Option(
            "--worker",
            metavar="[ID=]ENDPOINT[,replay=ENDPOINT][,ranks=0-3]",
            help="A worker to subscribe to; repeat for each. ranks: data-parallel ranks, each on port + rank.",
        ),
    ] = None,
    ingest: Annotated[
        str | None,
        typer.Option("--ingest", metavar="ENDPOINT", help="Bind here and let workers connect, told apart by topic."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="With --ingest: how many workers must agree.")
    ] = None,
    topics: Annotated[
        str, typer.Option("--topics", metavar="A,B,…", help="With --ingest: keep seats for these topics.")
    ] = "",
    pub: Annotated[str, typer.Option("--pub", metavar="ENDPOINT", help="Publish here.")] = "tcp://127.0.0.1:5600",
    replay: Annotated[
        str, typer.Option("--replay", metavar="ENDPOINT", help="Answer replay requests here; 'none' = nowhere.")
    ] = "tcp://127.0.0.1:5700",
    topic: Annotated[str, typer.Option("--topic", help="Topic of every message; llm-d wants kv@POD@MODEL.")] = "",
    age: Annotated[float, typer.Option("--age", metavar="S", help="Seconds for which a worker's vote counts.")] = 30.0,
    clear_wait: Annotated[
        float, typer.Option("--clear-wait", metavar="S", help="Seconds until one worker's clear goes out alone.")
    ] = 5.0,
    buffer_batches: Annotated[
        int, typer.Option("--buffer-batches", metavar="N", help="Batches kept for replay.")
    ] = 10_000,
    buffer_bytes: Annotated[int, typer.Option("--buffer-bytes", metavar="N", help="Bytes kept for replay.")] = 256
    << 20,
    hwm: Annotated[
        int, typer.Option("--hwm", metavar="N", help="Messages queued per subscriber before it loses some.")
    ] = 100_000,
    journal: Annotated[
        str | None,
        typer.Option("--journal", metavar="PATH", help="Keep here what is needed to go on after being killed."),
    ] = None,
    journal_reset: Annotated[
        bool,
        typer.Option("--journal-reset", help="Set a damaged or foreign file at --journal aside, and begin a new one."),
    ] = False,
    seconds: Annotated[
        float | None, typer.Option("--seconds", metavar="S", help="End by itself after so long.")
    ] = None,
    ready_path: Annotated[
        Path | None,
        typer.Option("--ready-file", metavar="PATH", help="Write the bound endpoints here as JSON once all are open."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="At the end, print all figures as one JSON object.")] = False,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "info",
) -> None:
    """Join workers, release the events that all of them have emitted, and publish those on the engines' own wire.

    Router and tail subscribe to it as they would to an engine. SIGTERM and Ctrl-C: takes no more input, sends what has been
    released, exits with 0.
    """
    with reporting():
        _check_numbers(seconds, log_level)
        config = _config(
            worker or [],
            ingest,
            workers,
            topics,
            pub,
            replay,
            topic,
            age,
            clear_wait,
            buffer_batches,
            buffer_bytes,
            hwm,
            journal,
            journal_reset,
        )
        _run(config, seconds, ready_path, json, log_level)


def _check_numbers(seconds: float | None, log_level: str) -> None:
    """Refuse what no field of the configuration would.

    Raises:
        ConfigError: With each problem.
    """
    from kvbus.errors import ConfigError, Problem

    problems = []
    if seconds is not None and not seconds > 0:
        problems.append(Problem("--seconds", str(seconds), "must be more than 0"))
    if log_level not in LEVELS:
        problems.append(Problem("--log-level", log_level, f"must be one of {', '.join(LEVELS)}"))
    if problems:
        raise ConfigError(problems)


def _config(
    worker: list[str],
    ingest: str | None,
    workers: int | None,
    topics: str,
    pub: str,
    replay: str,
    topic: str,
    age: float,
    clear_wait: float,
    buffer_batches: int,
    buffer_bytes: int,
    hwm: int,
    journal: str | None,
    journal_reset: bool,
) -> BrokerConfig:
    """Build the configuration from the flags.

    Raises:
        ConfigError: With every problem found.
    """
    from kvbus.config import BrokerConfig, ViewConfig, parse_worker
    from kvbus.errors import ConfigError, Problem

    problems: list[Problem] = []
    parsed = []
    for text in worker:
        try:
            parsed.append(parse_worker(text))
        except ConfigError as error:
            problems += error.problems
    if ingest is None and (workers is not None or topics):
        problems.append(Problem("--workers" if workers is not None else "--topics", "", "needs --ingest"))
    if ingest is not None and workers is None:
        problems.append(Problem("--workers", "", "--ingest needs the number of workers that must agree"))
    if problems:
        raise ConfigError(problems)
    view = ViewConfig(
        endpoint=pub,
        replay_endpoint=None if replay == "none" else replay,
        topic=topic,
        buffer_batches=buffer_batches,
        buffer_bytes=buffer_bytes,
        hwm=hwm,
    )
    config = BrokerConfig(
        workers=tuple(parsed),
        ingest=_ingest_config(ingest, workers, topics),
        views=(view,),
        age_s=age,
        clear_wait_s=clear_wait,
        journal=journal,
        journal_reset=journal_reset,
    )
    config.validate()
    return config


def _ingest_config(endpoint: str | None, workers: int | None, topics: str) -> IngestConfig | None:
    from kvbus.config import IngestConfig

    if endpoint is None or workers is None:
        return None
    named = tuple(name for name in topics.split(",") if name)
    return IngestConfig(endpoint=endpoint, workers=workers, topics=named)


def _run(config: BrokerConfig, seconds: float | None, ready_path: Path | None, json: bool, log_level: str) -> None:
    """Run a broker until a signal, the time limit or the end of its thread."""
    import msgspec

    from kvbus.broker.server import Broker
    from kvbus.ops.logs import open_log
    from kvbus_cli.ready import ready_file
    from kvbus_cli.signals import StopSignal

    log = open_log(log_level)
    server = Broker(config, tell=lambda notice: getattr(log, notice.level)(notice.name, **notice.fields))
    with StopSignal() as stop_signal:
        with server:
            log.info("broker_started", **server.endpoints)
            with ready_file(ready_path, server.endpoints):
                stop_signal.wait(seconds, server.wait)
        status = server.status()
        released = sum(group.released for group in status.groups)
        log.info("broker_stopped", batches=status.batches, released=released, sent=status.views[0].sent)
        if json:
            print(msgspec.json.encode(status).decode())
