"""What a broker tells over HTTP, path by path.

| Path | Answers |
|---|---|
| `/` | One live page, for people. |
| `/metrics` | Metrics, for Prometheus. |
| `/healthz` | 200 while the loop turns, else 503: the process is no good any more. |
| `/readyz` | 200 when the broker can tell the whole truth, else 503; reasons in the body. |
| `/status.json` | Everything. |
| `/history.json` | The last half hour in a few numbers, for the page. |
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from types import TracebackType

import msgspec

from kvbus.config.address import parse_address
from kvbus.errors import ConfigError
from kvbus.ops.history import History
from kvbus.ops.report import SILENCE_MAX_S, Observed, Observer
from kvbus.ops.web import Answer, Question, WebServer

__all__ = ["DEFAULT_HTTP", "Site", "open_site"]

DEFAULT_HTTP = "127.0.0.1:9600"
"""Where `auto` listens if it can."""

_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"


class Site:
    """Answers questions about one broker; and the server that takes them, once `open_site` has given it one.

    Attributes:
        url: Where it is; empty where it is nowhere.
        is_elsewhere: Whether it is not where it was to be, because somebody else is there: another broker, most likely, whom a
            scrape or a `kvbus top` would then take for this one.
    """

    def __init__(self, broker: Observed) -> None:
        """Begin with no server.

        Args:
            broker: Whom it is about; started.
        """
        self.url = ""
        self.is_elsewhere = False
        self.observer = Observer(broker)
        self._server: WebServer | None = None
        self._history: History | None = None

    def listen(self, address: tuple[str, int]) -> None:
        """Serve at an address.

        Args:
            address: Host and port; 0 = any free one.

        Raises:
            ConfigError: It cannot be bound.
        """
        self._server = WebServer(address, self.answer)
        self.url = self._server.url
        self.observer.endpoints["http"] = self.url
        self._history = History(self.observer.take)

    def answer(self, question: Question) -> Answer:
        """Answer one question.

        Args:
            question: What is asked for.
        """
        if question.path == "/metrics":
            # Not loaded before somebody scrapes.
            from kvbus.ops.scrape import scrape

            media_type, body = scrape(self.observer.take(), question.accept)
            return Answer(200, media_type, body)
        if question.path == "/healthz":
            return self._health()
        if question.path == "/readyz":
            readiness = self.observer.take().readiness
            return Answer(200 if readiness.is_ready else 503, _JSON, msgspec.json.encode(readiness))
        if question.path == "/status.json":
            report = self.observer.take()
            return Answer(200 if report.state == "running" else 503, _JSON, msgspec.json.encode(report))
        if question.path == "/history.json":
            samples = [] if self._history is None else self._history.samples()
            return Answer(200, _JSON, msgspec.json.encode(samples))
        if question.path in ("/", "/index.html"):
            return Answer(200, "text/html; charset=utf-8", _page())
        return Answer(404, _TEXT, b"404 Not Found; there are /, /metrics, /healthz, /readyz and /status.json\n")

    def close(self) -> None:
        """Stop serving. Twice is harmless."""
        if self._server is not None:
            self._server.close()
        if self._history is not None:
            self._history.close()

    def _health(self) -> Answer:
        """Say whether the loop turns. Waits for nobody."""
        state, silence_s = self.observer.liveness()
        if state == "running":
            return Answer(200, _TEXT, b"ok\n")
        if silence_s is None:
            return Answer(503, _TEXT, b"the broker has ended\n")
        text = f"the loop has not turned for {silence_s:.1f} s; more than {SILENCE_MAX_S:g} is too long\n"
        return Answer(503, _TEXT, text.encode())

    def __enter__(self) -> Site:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop serving."""
        self.close()


def open_site(broker: Observed, http: str) -> Site:
    """Serve what a broker tells.

    Args:
        broker: Whom it is about; started.
        http: As `BrokerConfig.http`: `auto`, `none`, or where.

    Returns:
        The site; to be closed before the broker is stopped, or after.

    Raises:
        ConfigError: The address is none, or cannot be bound; with `auto` only where loopback has no free port at all.
    """
    site = Site(broker)
    if http == "auto":
        try:
            site.listen(parse_address(DEFAULT_HTTP))
        except ConfigError:
            site.listen(("127.0.0.1", 0))
            site.is_elsewhere = True
    elif http != "none":
        site.listen(parse_address(http))
    return site


@cache
def _page() -> bytes:
    """Return the page."""
    return files("kvbus.ops").joinpath("page.html").read_bytes()
