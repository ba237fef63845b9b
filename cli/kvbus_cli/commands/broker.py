"""`kvbus broker`: join workers, release what all of them have emitted, publish it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvbus_cli.reporting import reporting

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from kvbus.broker.server import Broker
    from kvbus_cli.broker_settings import BrokerSettings

__all__ = ["register"]

LEVELS = ("debug", "info", "warning", "error")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("broker")(broker)


def broker(
    context: typer.Context,
    worker: Annotated[
        list[str] | None,
        typer.Option(
            "--worker",
            metavar="[ID=]ENDPOINT[,replay=ENDPOINT][,ranks=0-3]",
            help="A worker to subscribe to; repeat for each. ranks: data-parallel ranks, each on port + rank.",
        ),
    ] = None,
    engine_config: Annotated[
        str | None,
        typer.Option(
            "--engine-config",
            metavar="JSON",
            help="A worker more: the engine that was started with this JSON behind vLLM's --kv-events-config.",
        ),
    ] = None,
    engine_host: Annotated[
        str | None,
        typer.Option(
            "--engine-host",
            metavar="HOST",
            help="Where that engine runs, if it binds every interface.",
            show_default="127.0.0.1",
        ),
    ] = None,
    engine_ranks: Annotated[
        int | None,
        typer.Option(
            "--engine-ranks", metavar="N", help="Its data-parallel ranks, each on port + rank.", show_default="1"
        ),
    ] = None,
    discover: Annotated[
        list[str] | None,
        typer.Option(
            "--discover",
            metavar="KIND:TARGET[,replay=PORT][,ranks=0-3][,group=G]",
            help="Workers that come and go: file:PATH, dns:HOST:PORT, vllm:URL or sglang:URL; repeat for more.",
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
        str | None, typer.Option("--topics", metavar="A,B,…", help="With --ingest: keep seats for these topics.")
    ] = None,
    config_path: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            envvar="KVBUS_CONFIG",
            help="Options from this TOML file; KVBUS_… variables count more, flags most. Read again on SIGHUP.",
        ),
    ] = None,
    pub: Annotated[
        str | None,
        typer.Option("--pub", metavar="ENDPOINT", help="Publish here.", show_default="tcp://127.0.0.1:5600"),
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(
            "--replay",
            metavar="ENDPOINT",
            help="Answer replay requests here; 'none' = nowhere.",
            show_default="tcp://127.0.0.1:5700",
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", help="Topic of every message; llm-d wants kv@POD@MODEL.", show_default="empty"),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", metavar="ROUTER", help="What reads along: dynamo, llm-d, …; see kvbus config profiles."
        ),
    ] = None,
    on_loss: Annotated[
        str | None,
        typer.Option(
            "--on-loss",
            metavar="clear|ignore",
            help="When a worker's batches are lost: withdraw what it may concern, or only say so.",
            show_default="clear",
        ),
    ] = None,
    on_departure: Annotated[
        str | None,
        typer.Option(
            "--on-departure",
            metavar="clear|shrink|hold",
            help="When a worker has gone: withdraw all and go on without it, just go on, or wait for it.",
            show_default="clear",
        ),
    ] = None,
    worker_timeout: Annotated[
        float | None,
        typer.Option(
            "--worker-timeout",
            metavar="S",
            help="Seconds without a connection, or of unanswered probes, until a worker has gone.",
            show_default="30",
        ),
    ] = None,
    probe: Annotated[
        float | None,
        typer.Option(
            "--probe",
            metavar="S",
            help="Seconds of silence until a worker is asked whether anything was missed.",
            show_default="5",
        ),
    ] = None,
    age: Annotated[
        float | None,
        typer.Option("--age", metavar="S", help="Seconds for which a worker's vote counts.", show_default="30"),
    ] = None,
    clear_wait: Annotated[
        float | None,
        typer.Option(
            "--clear-wait", metavar="S", help="Seconds until one worker's clear goes out alone.", show_default="5"
        ),
    ] = None,
    buffer_batches: Annotated[
        int | None,
        typer.Option("--buffer-batches", metavar="N", help="Batches kept for replay.", show_default="10000"),
    ] = None,
    buffer_bytes: Annotated[
        int | None,
        typer.Option("--buffer-bytes", metavar="N", help="Bytes kept for replay.", show_default="268435456"),
    ] = None,
    hwm: Annotated[
        int | None,
        typer.Option(
            "--hwm", metavar="N", help="Messages queued per subscriber before it loses some.", show_default="100000"
        ),
    ] = None,
    curve_key: Annotated[
        str | None,
        typer.Option(
            "--curve-key", metavar="FILE", help="Encrypt what is bound, with this secret key (kvbus keys new)."
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="KEY|FILE|DIR|any", help="With --curve-key: who may connect; repeat for more."),
    ] = None,
    server_key: Annotated[
        str | None,
        typer.Option("--server-key", metavar="KEY|FILE", help="Public key of the workers, where those are encrypted."),
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option("--journal", metavar="PATH", help="Keep here what is needed to go on after being killed."),
    ] = None,
    journal_reset: Annotated[
        bool,
        typer.Option("--journal-reset", help="Set a damaged or foreign file at --journal aside, and begin a new one."),
    ] = False,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT|none",
            help="Page, metrics and probes here; by default a free port of loopback where 9600 is taken.",
            show_default="127.0.0.1:9600",
        ),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", metavar="S", help="End by itself after so long.")
    ] = None,
    ready_path: Annotated[
        Path | None,
        typer.Option("--ready-file", metavar="PATH", help="Write the bound endpoints here as JSON once all are open."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="At the end, print all figures as one JSON object.")] = False,
    log_level: Annotated[
        str, typer.Option("--log-level", envvar="KVBUS_LOG_LEVEL", help="debug, info, warning or error.")
    ] = "info",
) -> None:
    """Join workers, release the events that all of them have emitted, and publish those on the engines' own wire.

    Router and tail subscribe to it as they would to an engine. What has no flag here can be said in a file or a variable:
    `kvbus config example` lists everything, `kvbus config show` prints what holds and who says so. SIGTERM and Ctrl-C: takes no
    more input, sends what has been released, exits with 0. SIGHUP: reads --config again.
    """
    with reporting():
        _check_numbers(seconds, log_level)
        from kvbus_cli.broker_settings import BrokerSettings, flags_of

        settings = BrokerSettings(config_path, flags_of(context.params), os.environ)
        _run(settings, seconds, ready_path, json, log_level)


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


def _run(settings: BrokerSettings, seconds: float | None, ready_path: Path | None, json: bool, log_level: str) -> None:
    """Run a broker until a signal, the time limit or the end of its thread."""
    import gc

    import msgspec

    from kvbus.broker.server import Broker
    from kvbus.errors import ConfigError
    from kvbus.ops.logs import NoticeLog, open_log
    from kvbus.ops.site import DEFAULT_HTTP, open_site
    from kvbus_cli.ready import ready_file
    from kvbus_cli.signals import StopSignal

    loaded = settings.survey()
    if loaded.problems:
        raise ConfigError(loaded.problems)
    log = open_log(log_level)
    for stranger in loaded.strangers:
        log.warning("variable_ignored", variable=stranger.field, reason=stranger.reason)
    tell = NoticeLog(log)
    server = Broker(loaded.config, tell=tell)
    with StopSignal(on_hangup=lambda: _reload(server, settings, log)) as stop_signal:
        with tell, server, open_site(server, loaded.config.http) as site:
            # What is there by now stays to the end; the collector would look at all of it again and again, 40 ms each time.
            gc.collect()
            gc.freeze()
            endpoints = site.observer.endpoints
            log.info("broker_started", **endpoints)
            if site.is_elsewhere:
                log.warning("http_elsewhere", http=site.url, reason=f"{DEFAULT_HTTP} is taken; --http says where")
            with ready_file(ready_path, endpoints):
                stop_signal.wait(seconds, server.wait)
        status = server.status()
        released = sum(group.released for group in status.groups)
        log.info("broker_stopped", batches=status.batches, released=released, sent=status.views[0].sent)
        if json:
            print(msgspec.json.encode(status).decode())


def _reload(server: Broker, settings: BrokerSettings, log: FilteringBoundLogger) -> None:
    """Read the configuration again; what cannot be done is a line in the log each, and all goes on as before."""
    from kvbus.errors import ConfigError, UsageError

    if settings.path is None:
        log.warning("reload_ignored", reason="there is no --config to read again")
        return
    try:
        change = server.reload(settings.load())
    except ConfigError as error:
        for problem in error.problems:
            log.error("reload_refused", problem=str(problem))
        return
    except UsageError as error:  # its loop hangs, or ends; neither gets better by our end
        log.error("reload_refused", problem=str(error))
        return
    added = [worker.worker_id for worker in change.added]
    log.info("reloaded", added=added, removed=[worker.worker_id for worker in change.removed])
