"""Options for CURVE that do not fit together are found before a socket opens, each under its name."""

from __future__ import annotations

import pytest

from kvbus.config import BrokerConfig, IngestConfig, ViewConfig, WorkerConfig, parse_worker
from kvbus.config.curve import clients_of, curve_problems
from kvbus.security.keys import CurveConfig

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
OWN = CurveConfig(secret_key_file="own.key_secret")
ALL = CurveConfig(secret_key_file="own.key_secret", allow=("any",))
ENGINE = (WorkerConfig(worker_id="w", endpoint="tcp://127.0.0.1:1"),)


def fields(**options) -> list[str]:
    return [problem.field for problem in curve_problems(BrokerConfig(**{"workers": ENGINE, **options}))]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"curve": ALL},
        {"curve": CurveConfig(server_key=KEY)},
        {"curve": OWN, "views": (ViewConfig(allow=(KEY,)),)},
        {"curve": OWN, "views": (ViewConfig(curve=False),)},
        {"curve": ALL, "workers": (), "ingest": IngestConfig(allow=(KEY, "folder"))},
        {"workers": (parse_worker(f"w=tcp://127.0.0.1:1,server_key={KEY}"),)},
    ],
)
def test_what_fits_together(options) -> None:
    assert [] == fields(**options)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"curve": CurveConfig()}, "curve"),
        ({"curve": OWN}, "curve.allow"),
        ({"curve": CurveConfig(server_key=KEY, allow=("any",))}, "curve.allow"),
        ({"views": (ViewConfig(allow=(KEY,)),)}, "views[0].allow"),
        ({"curve": ALL, "views": (ViewConfig(allow=(KEY,), curve=False),)}, "views[0].allow"),
        ({"curve": ALL, "views": (ViewConfig(allow=(KEY, "any")),)}, "views[0].allow"),
        ({"curve": OWN, "views": (ViewConfig(curve=False),), "workers": (), "ingest": IngestConfig()}, "curve.allow"),
        ({"workers": (), "ingest": IngestConfig(allow=(KEY,))}, "ingest.allow"),
        ({"workers": (parse_worker(f"bind:tcp://127.0.0.1:0,server_key={KEY}"),)}, "workers[0].server_key"),
        ({"workers": (parse_worker("tcp://127.0.0.1:1,server_key="),)}, "workers[0].server_key"),
        (
            {"curve": OWN, "views": (ViewConfig(curve=False),), "workers": (parse_worker("bind:tcp://127.0.0.1:0"),)},
            "curve.allow",
        ),
    ],
)
def test_what_does_not(options, field) -> None:
    assert [field] == fields(**options)


def test_a_list_of_its_own_stands_in_place_of_the_common_one() -> None:
    config = BrokerConfig(curve=ALL)
    assert ("any",) == clients_of(config, ())
    assert (KEY,) == clients_of(config, (KEY,))
    assert () == clients_of(BrokerConfig(), ())
