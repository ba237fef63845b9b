"""Configurations that cannot work are refused at start, with every reason and the flag to blame."""

from __future__ import annotations

import pytest

from kvbus.config import BrokerConfig, GroupConfig, GroupPolicy, IngestConfig, ViewConfig, WorkerConfig
from kvbus.errors import ConfigError

WORKER = WorkerConfig(worker_id="a", endpoint="tcp://127.0.0.1:5557")


def problems(config: BrokerConfig) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config.validate()
    return [str(problem) for problem in caught.value.problems]


def test_a_broker_of_text_is_the_one_that_the_command_line_makes():
    config = BrokerConfig.of(
        "a=tcp://h:1,replay=tcp://h:2", "tcp://h:3", pub="tcp://127.0.0.1:0", replay=None, topic="kv", age_s=5.0
    )
    config.validate()
    assert [
        WorkerConfig(worker_id="a", endpoint="tcp://h:1", replay_endpoint="tcp://h:2"),
        WorkerConfig(worker_id="tcp://h:3", endpoint="tcp://h:3"),
    ] == list(config.workers)
    assert (ViewConfig(endpoint="tcp://127.0.0.1:0", replay_endpoint=None, topic="kv"),) == config.views
    assert 5.0 == config.age_s
    with pytest.raises(ConfigError, match="70000"):
        BrokerConfig.of("tcp://h:70000")


@pytest.mark.parametrize("worker", ["tcp://127.0.0.1:5600", "a=tcp://127.0.0.1:9,replay=tcp://127.0.0.1:5700"])
def test_a_broker_does_not_listen_to_itself(worker):
    """It would publish what it has published for ever."""
    (line,) = problems(BrokerConfig.of(worker))
    assert "the broker itself is there" in line


def test_a_broker_needs_somebody_to_listen_to():
    assert any("workers: give" in line for line in problems(BrokerConfig()))


def test_workers_and_ingest_exclude_each_other():
    assert any(
        "ingest.endpoint: cannot" in line for line in problems(BrokerConfig(workers=(WORKER,), ingest=IngestConfig()))
    )


def test_all_problems_are_shown_at_once():
    bad = BrokerConfig(
        workers=(WORKER, WORKER),
        views=(ViewConfig(endpoint="nonsense", buffer_batches=0), ViewConfig(replay_endpoint="tcp://127.0.0.1:99999")),
        age_s=0,
        clear_wait_s=float("nan"),
        pending_events_max=0,
        losses_per_minute=0,
    )
    text = "\n".join(problems(bad))
    for field in (
        "worker id",
        "views[0].endpoint",
        "views[0].buffer_batches",
        "views[1].replay_endpoint",
        "age_s",
        "clear_wait_s",
        "pending_events_max",
    ):
        assert field in text
    assert "losses_per_minute" in text
    assert "view name" in text


def test_two_things_on_one_port_are_refused():
    """Ranks of one worker on the ports of another, too."""
    both = BrokerConfig(
        workers=(
            WorkerConfig(worker_id="a", endpoint="tcp://h:5557", ranks=(0, 1)),
            WorkerConfig(worker_id="b", endpoint="tcp://h:5558"),
        )
    )
    assert [
        "workers[1].endpoint: port 5558 is also that of workers[0].endpoint (rank 1) (got 'tcp://h:5558')"
    ] == problems(both)
    same = BrokerConfig(workers=(WORKER,), views=(ViewConfig(endpoint="tcp://x:1", replay_endpoint="tcp://x:1"),))
    assert ["views[0].replay_endpoint: port 1 is also that of views[0].endpoint (got 'tcp://x:1')"] == problems(same)


def test_http_is_in_nobodys_place():
    taken = BrokerConfig(workers=(WORKER,), http="127.0.0.1:5600")
    assert ["http: port 5600 is also that of views[0].endpoint (got 'tcp://127.0.0.1:5600')"] == problems(taken)
    assert ["http: port 5600 is also that of views[0].endpoint (got 'tcp://127.0.0.1:5600')"] == problems(
        BrokerConfig(workers=(WORKER,), http=":5600")
    )
    BrokerConfig(workers=(WORKER,), http="127.0.0.1:0").validate()
    assert 1 == len(problems(BrokerConfig(workers=(WORKER,), http="nonsense")))


def test_ports_that_the_system_chooses_never_collide():
    view = ViewConfig(endpoint="tcp://127.0.0.1:0", replay_endpoint="tcp://127.0.0.1:0")
    BrokerConfig(workers=(WORKER,), views=(view,)).validate()


@pytest.mark.parametrize(
    ("ingest", "reason"),
    [
        (IngestConfig(workers=0), "ingest.workers"),
        (IngestConfig(workers=1, topics=("a", "b")), "more topics"),
        (IngestConfig(workers=2, topics=("a", "a")), "twice"),
        (IngestConfig(endpoint="tcp://*:99999"), "ingest.endpoint"),
    ],
)
def test_an_ingest_socket_that_cannot_work(ingest, reason):
    assert any(reason in line for line in problems(BrokerConfig(ingest=ingest)))


def test_defaults_stay_away_from_the_engine_in_the_same_pod():
    """E5, E3: loopback, and never 5557 or 5558."""
    view = ViewConfig()
    assert "tcp://127.0.0.1:5600" == view.endpoint
    assert "tcp://127.0.0.1:5800" == IngestConfig().endpoint


def test_a_group_has_the_policies_that_it_names_and_the_brokers_for_the_rest():
    config = BrokerConfig(
        workers=(WORKER, WorkerConfig(worker_id="b", endpoint="tcp://h:2", group="g")),
        groups=(GroupConfig(name="g", on_departure="hold"),),
        on_loss="ignore",
        worker_timeout_s=7,
    )
    config.validate()
    assert GroupPolicy(on_loss="ignore", on_departure="clear", worker_timeout_s=7) == config.policy("")
    assert GroupPolicy(on_loss="ignore", on_departure="hold", worker_timeout_s=7) == config.policy("g")


def test_policies_that_do_not_exist_are_named_with_flag_or_key():
    bad = BrokerConfig(
        workers=(WORKER,),
        on_loss="forget",
        on_departure="wait",
        worker_timeout_s=0,
        probe_s=float("inf"),
        groups=(GroupConfig(name="g", on_loss="x", worker_timeout_s=-1), GroupConfig(name="g")),
    )
    lines = problems(bad)
    for start in (
        "on_loss: must be one of clear, ignore (got 'forget')",
        "on_departure: must be one of clear, shrink, hold (got 'wait')",
        "worker_timeout_s: must be more than 0",
        "probe_s: must be more than 0",
        "groups[0].on_loss: must be one of",
        "groups[0].worker_timeout_s: must be more than 0",
        "groups[0].name: no worker is of this group (got 'g')",
        "groups[1].name: the same group name is given twice",
    ):
        assert any(line.startswith(start) for line in lines), start


def test_a_time_out_of_a_probed_worker_is_at_least_two_probes_long():
    probed = WorkerConfig(worker_id="a", endpoint="tcp://h:1", replay_endpoint="tcp://h:2")
    (line,) = problems(BrokerConfig(workers=(probed,), worker_timeout_s=9.0))
    assert line.startswith("worker_timeout_s: must be at least twice probe_s (5)")
    BrokerConfig(workers=(WORKER,), worker_timeout_s=9.0).validate()
    BrokerConfig(workers=(probed,), worker_timeout_s=9.0, probe_s=4.5).validate()


@pytest.mark.parametrize("http", ["auto", "none", "127.0.0.1:0", ":9601", "[::1]:9600"])
def test_http_may_be_anywhere_nowhere_or_somewhere(http: str) -> None:
    BrokerConfig.of("tcp://127.0.0.1:5557", http=http).validate()


@pytest.mark.parametrize(("http", "reason"), [("9600", "expected HOST:PORT"), ("127.0.0.1:5600", "5600")])
def test_http_has_an_address_of_its_own(http: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        BrokerConfig.of("tcp://127.0.0.1:5557", http=http).validate()
    assert "http" in {problem.field for problem in raised.value.problems}
