"""The recipes are right as far as kvbus can judge: flags, profiles, ports, and the engine's own JSON."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from kvbus.settings.engine import engine_worker, parse_engine_config
from kvbus.views.profiles import PROFILES
from kvbus_cli.main import app
from tests.command_lines import command_lines, problem_of, shell_blocks
from tests.shared_data import CHECKOUT

TEXT = (CHECKOUT / "deploy" / "ROUTERS.md").read_text(encoding="utf-8")

SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def _engine(text: str) -> str:
    """Return the engine's configuration in a text."""
    (found,) = re.findall(r"--kv-events-config '(\{.*?\})'", text, re.DOTALL)
    return re.sub(r"\n\s*", " ", found)


def _brokers(text: str) -> list[list[str]]:
    return [line for block in shell_blocks(text) for line in command_lines(block)]


def test_every_router_that_has_a_profile_has_a_recipe() -> None:
    """`vllm` is no router: decoders made of its structs are in everybody's own programs."""
    used = {line[line.index("--profile") + 1] for line in _brokers(TEXT)}
    assert used == set(PROFILES) - {"", "vllm"}


@pytest.mark.parametrize("title", SECTIONS)
def test_a_recipe_is_a_configuration_without_mistakes(title: str) -> None:
    """What is written is what the broker would take, ports of ranks included."""
    (line,) = _brokers(SECTIONS[title])
    assert "broker" == line[0]
    assert problem_of(line) is None
    result = CliRunner().invoke(app, ["config", "show", *line[1:]])
    assert 0 == result.exit_code, result.output


@pytest.mark.parametrize("title", SECTIONS)
def test_the_broker_follows_what_the_engine_publishes(title: str) -> None:
    """Both ends name the same ports; a section without an engine of its own means the one in front."""
    section = SECTIONS[title]
    spoken = _engine(section if "--kv-events-config" in section else TEXT.partition("\n## ")[0])
    if "enable_kv_cache_events" not in spoken:  # SGLang has no such key: to say the rest is to ask for events
        spoken = spoken.replace("{", '{"enable_kv_cache_events": true, ', 1)
    engine = engine_worker(parse_engine_config(spoken), "127.0.0.1")
    (line,) = _brokers(section)
    worker = line[line.index("--worker") + 1]
    assert f"={engine.endpoint},replay={engine.replay_endpoint}" in re.sub(r",ranks=.*", "", worker)


@pytest.mark.parametrize("title", SECTIONS)
def test_the_router_is_sent_to_the_broker(title: str) -> None:
    """The ports that a recipe gives its router are those of the broker; AIBrix and SMG's relay know theirs by themselves."""
    section = SECTIONS[title]
    (line,) = _brokers(section)
    ports = [line[line.index(flag) + 1].rpartition(":")[2] for flag in ("--pub", "--replay")]
    others = re.sub(r"^```bash\n.*?^```", "", section, flags=re.MULTILINE | re.DOTALL)
    assert all(re.search(rf"\b{port}\b", others) for port in ports) or title == "SGLang, with SMG"
