"""The deployment files say what the program and Kubernetes understand.

Schema checkers run in `.ci/run`. Here is what no schema knows: that the flags exist, that what one part binds another part
connects to, and that probes, signals and users fit the program.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import PurePosixPath
from typing import Any

import pytest
import yaml

from kvbus_cli.exits import Exit
from tests.command_lines import problem_of
from tests.shared_data import CHECKOUT
from tests.source_tree import tracked_files

DEPLOY = CHECKOUT / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
KUBERNETES = DEPLOY / "kubernetes"
DOCKERFILE = DEPLOY / "Dockerfile"


def _services() -> dict[str, Any]:
    services = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    assert isinstance(services, dict)
    return services


def _resources() -> dict[str, Any]:
    """What the native sidecar is made of; each kind is there once."""
    files = [*(KUBERNETES / "engine").glob("*.yaml"), *(KUBERNETES / "native-sidecar").glob("*.yaml")]
    found = [resource for path in files for resource in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    return {resource["kind"]: resource for resource in found}


def _pod() -> dict[str, Any]:
    pod = _resources()["Deployment"]["spec"]["template"]["spec"]
    assert isinstance(pod, dict)
    return pod


def test_every_deployment_file_parses() -> None:
    """A file that no tool reads is wrong before long."""
    files = [PurePosixPath(name) for name in tracked_files() if name.startswith("deploy/")]
    for path in files:
        if path.suffix in (".yaml", ".yml"):
            assert [] != list(yaml.safe_load_all((CHECKOUT / path).read_text(encoding="utf-8")))


@pytest.mark.parametrize("service", ["workers", "broker", "tail"])
def test_compose_runs_existing_commands(service: str) -> None:
    """The flags of the compose file are the command's own."""
    assert problem_of(_services()[service]["command"]) is None


def test_compose_services_wait_for_what_they_need() -> None:
    """Tail starts when the broker has bound its sockets, else the first events of the demonstration are lost to it."""
    services = _services()
    assert {"broker": {"condition": "service_healthy"}} == services["tail"]["depends_on"]
    assert "healthcheck" in services["broker"]


def test_the_compose_broker_subscribes_to_what_the_workers_bind() -> None:
    """Every rank's port and replay port, on the name of the service."""
    ranks = int(_value(_services()["workers"]["command"], "--ranks"))
    workers = [word.split("=", 1)[1] for word in _services()["broker"]["command"] if word.startswith("--worker=")]
    assert ranks == len(workers)
    for worker in workers:
        assert re.fullmatch(r"rank-\d=tcp://workers:\d+,replay=tcp://workers:\d+", worker)
    assert ranks == len({worker.split("=", 1)[1] for worker in workers})


def test_the_sidecar_runs_an_existing_command() -> None:
    """As Kubernetes would start it, after filling in the variables."""
    (sidecar,) = _pod()["initContainers"]
    names = {variable["name"] for variable in sidecar["env"]}
    used = set(re.findall(r"\$\((\w+)\)", " ".join(sidecar["args"])))
    assert used == names
    assert problem_of([re.sub(r"\$\(\w+\)", "x", word) for word in sidecar["args"]]) is None


def test_the_sidecar_is_native_and_ends_after_the_engine() -> None:
    """As a plain container it would be stopped together with the engine, before the engine's last events."""
    (sidecar,) = _pod()["initContainers"]
    assert "Always" == sidecar["restartPolicy"]
    assert {"startupProbe", "livenessProbe"} <= set(sidecar)


def test_probes_and_services_name_ports_that_kvbus_binds() -> None:
    """A probe of a port that nobody binds restarts a healthy broker for ever."""
    (sidecar,) = _pod()["initContainers"]
    ports = {port["name"]: port["containerPort"] for port in sidecar["ports"]}
    assert f"tcp://*:{ports['kv-events']}" == _value(sidecar["args"], "--pub")
    assert f"tcp://*:{ports['kv-replay']}" == _value(sidecar["args"], "--replay")
    assert f"0.0.0.0:{ports['kvbus-http']}" == _value(sidecar["args"], "--http")
    probed = {sidecar[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe")}
    # By number: Kubernetes 1.29 to 1.31 know native sidecars, and give a service no endpoints for their named ports.
    offered = {port["name"]: port["targetPort"] for port in _resources()["Service"]["spec"]["ports"]}
    assert {name: ports[name] for name in ("kv-events", "kv-replay")} == offered
    watched = {endpoint["port"] for endpoint in _resources()["PodMonitor"]["spec"]["podMetricsEndpoints"]}
    assert probed | watched <= set(ports)


def test_the_engine_publishes_where_the_sidecar_listens() -> None:
    """vLLM binds only a wildcard host; the broker connects to the same ports on loopback."""
    (engine,) = _pod()["containers"]
    (argument,) = (word for word in engine["args"] if word.startswith("--kv-events-config="))
    config = json.loads(argument.partition("=")[2])
    assert config["enable_kv_cache_events"] is True
    (sidecar,) = _pod()["initContainers"]
    expected = "vllm={endpoint},replay={replay_endpoint}".format_map(config).replace("*", "127.0.0.1")
    assert expected == _value(sidecar["args"], "--worker")


def test_engine_ports_stay_inside_the_pod() -> None:
    """Events carry prompt tokens, and the engine's own ports have no filter in front."""
    (engine,) = _pod()["containers"]
    (sidecar,) = _pod()["initContainers"]
    open_ports = {port["containerPort"] for port in [*engine["ports"], *sidecar["ports"]]}
    policy = _resources()["NetworkPolicy"]["spec"]
    assert open_ports == {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert policy["podSelector"]["matchLabels"] == _resources()["Service"]["spec"]["selector"]
    assert policy["podSelector"] == _resources()["PodMonitor"]["spec"]["selector"]


def test_the_central_broker_and_its_services_agree() -> None:
    """What selects, mounts and probes finds what it means."""
    found = [
        resource
        for path in (KUBERNETES / "central").glob("*.yaml")
        for resource in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]
    named = {(resource["kind"], resource["metadata"]["name"]): resource for resource in found if "metadata" in resource}
    template = named["Deployment", "kvbus"]["spec"]["template"]
    labels = template["metadata"]["labels"]
    (broker,) = template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in broker["ports"]}
    assert labels == named["Service", "kvbus"]["spec"]["selector"]
    assert labels == named["PodMonitor", "kvbus"]["spec"]["selector"]["matchLabels"]
    assert labels == named["NetworkPolicy", "kvbus"]["spec"]["podSelector"]["matchLabels"]
    policy = named["NetworkPolicy", "kvbus"]["spec"]
    assert set(ports.values()) == {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    engines = named["Service", "vllm-engines"]["spec"]["selector"]
    assert engines == named["NetworkPolicy", "vllm-engines"]["spec"]["podSelector"]["matchLabels"]
    assert engines == _resources()["Deployment"]["spec"]["selector"]["matchLabels"]
    assert problem_of(broker["args"]) is None


def test_one_engine_that_is_away_takes_nobody_else_off_the_central_broker() -> None:
    """A pod that is not ready has no address in its service, and /readyz waits for every engine."""
    manifest = yaml.safe_load((KUBERNETES / "central" / "deployment.yaml").read_text(encoding="utf-8"))
    (broker,) = manifest["spec"]["template"]["spec"]["containers"]
    assert "/healthz" == broker["readinessProbe"]["httpGet"]["path"]


def test_the_central_broker_is_configured_right() -> None:
    """Its configuration has no mistake, and names the ports, the file system and the service that the manifests have."""
    path = KUBERNETES / "central" / "kvbus.toml"
    done = subprocess.run(
        [sys.executable, "-m", "kvbus_cli", "config", "check", str(path)], capture_output=True, text=True, check=False
    )
    assert (0, "") == (done.returncode, done.stdout), done.stderr
    text = path.read_text(encoding="utf-8")
    # Routers know a pod by its address, and by no name of ours.
    assert '\ngroup = "{address}"\n' in text
    assert '\ntopic = "kv@{group}@' in text
    ports = {int(port) for port in re.findall(r'"(?:tcp://\*|0\.0\.0\.0):(\d+)"', text)}
    manifest = yaml.safe_load((KUBERNETES / "central" / "deployment.yaml").read_text(encoding="utf-8"))
    (broker,) = manifest["spec"]["template"]["spec"]["containers"]
    assert {port["containerPort"] for port in broker["ports"]} == ports
    (journal,) = re.findall(r'^journal = "(.*)/[^/]+"$', text, re.MULTILINE)
    assert journal in {mount["mountPath"] for mount in broker["volumeMounts"] if not mount.get("readOnly")}
    services = list(yaml.safe_load_all((KUBERNETES / "central" / "services.yaml").read_text(encoding="utf-8")))
    engines = next(service for service in services if service["metadata"]["name"] == "vllm-engines")
    events, replay = (port["port"] for port in engines["spec"]["ports"])
    assert f'target = "vllm-engines:{events}"' in text
    assert f"replay_port = {replay}" in text


def test_a_configuration_error_ends_a_unit_for_good() -> None:
    """Exit code 2 is a wrong configuration: trying it again fills the log and cures nothing."""
    for path in (DEPLOY / "systemd").glob("*.service"):
        text = path.read_text(encoding="utf-8")
        assert f"RestartPreventExitStatus={int(Exit.USAGE)}" in text
        (command,) = re.findall(r"^ExecStart=/opt/kvbus/bin/kvbus (.*)$", text, re.MULTILINE)
        assert problem_of(command.replace("%i", "main").split()) is None


def test_the_image_is_built_from_files_that_exist_and_runs_without_rights() -> None:
    """What it copies is there and is let through to the builder; the user is a number, so that `runAsNonRoot` can be judged."""
    text = DOCKERFILE.read_text(encoding="utf-8")
    copied = [name for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE) for name in line.split()]
    allowed = {
        line[1:]
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    assert allowed == set(copied)
    assert [] == [name for name in copied if not (CHECKOUT / name).exists()]
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", text, re.MULTILINE)
    assert ["kvbus"] == json.loads(re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[-1])
    default = json.loads(re.findall(r"^CMD (.*)$", text, re.MULTILINE)[-1])
    assert problem_of(default) is None


def _value(arguments: list[str], flag: str) -> str:
    """The value of `--flag=value` or `--flag value`; fails unless it is given once."""
    joined = [word.partition("=")[2] for word in arguments if word.startswith(f"{flag}=")]
    apart = [arguments[index + 1] for index, word in enumerate(arguments[:-1]) if word == flag]
    (value,) = [*joined, *apart]
    return value


def test_each_instance_of_the_unit_has_a_folder_of_its_own() -> None:
    """Every instance runs as a user of its own, and systemd gives the folder to the one that was started last."""
    unit = (DEPLOY / "systemd" / "kvbus-broker@.service").read_text(encoding="utf-8")
    assert "DynamicUser=yes" in unit
    assert "\nStateDirectory=kvbus/%i\n" in unit
