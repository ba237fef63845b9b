"""The example file says everything there is, and what it says is the default."""

from __future__ import annotations

import re
import sys
from itertools import pairwise

import msgspec
import pytest

from kvbus.config import BrokerConfig
from kvbus.settings.catalogue import list_of, options_of, struct_in
from kvbus.settings.example import _EXAMPLES, example_file, uncommented
from kvbus.settings.file import broker_config
from tests.shared_data import CHECKOUT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PATH = CHECKOUT / "deploy" / "kvbus.toml"
HINT = "Say under Attributes of the struct what it means, with unit and reason. "
HOW = "To write deploy/kvbus.toml anew: kvbus config example > deploy/kvbus.toml"


def options(kind, table=()):
    """Every option of a role that is a value, with the path of its table."""
    for option in options_of(kind):
        inner = struct_in(option.hint)
        if inner is None:
            yield table, kind, option
        else:
            yield from options(inner, (*table, option.name))


ALL = list(options(BrokerConfig))


class Inner(msgspec.Struct):
    """One.

    Attributes:
        key: A key. `None` = nobody's.
    """

    key: str | None = None


class Role(msgspec.Struct):
    """A role.

    Attributes:
        ratio: A number.
        inner: A table.
        names: Words.
        must: It.
    """

    must: str
    ratio: float = 0.5
    inner: Inner | None = None
    names: tuple[str, ...] = ("a",)


@pytest.fixture(scope="module")
def written() -> str:
    return PATH.read_text(encoding="utf-8")


def test_deploy_kvbus_toml_lists_every_option_of_every_struct(written):
    """Fourteen of fifty-three options are missing from an example that nobody keeps."""
    section, listed = "", set()
    for line in written.splitlines():
        if match := re.fullmatch(r"#\[+([a-z_.]+)\]+", line):
            section = match[1]
        elif match := re.match(r"#([a-z_]+) = ", line):
            listed.add((section, match[1]))
    missing = [
        f"{kind.__name__}.{option.name} has no line. {'' if option.text else HINT}{HOW}"
        for table, kind, option in ALL
        if (".".join(table), option.name) not in listed
    ]
    assert [] == missing, "\n".join(missing)


def test_deploy_kvbus_toml_is_what_the_command_prints(written):
    assert example_file(BrokerConfig) == written, HOW


def test_as_it_stands_it_says_nothing(written):
    assert {} == tomllib.loads(written)


def test_every_option_has_an_explanation_above_it(written):
    lines = written.splitlines()
    bare = [line for above, line in pairwise(lines) if re.match(r"#[a-z_]+ = ", line) and above[:2] != "# "]
    assert [] == bare


def test_come_to_life_it_says_the_defaults(written):
    """So that a line that is uncommented by mistake changes nothing."""
    document = tomllib.loads(uncommented(written))
    for table, kind, option in ALL:
        inner = document
        for name in table:
            inner = inner[name][0] if isinstance(inner[name], list) else inner[name]
        value = inner[option.name]
        if (table[-1] if table else "", option.name) in _EXAMPLES:
            assert option.default in (None, msgspec.NODEFAULT), option
        else:
            expected = "none" if option.default is None else msgspec.json.decode(msgspec.json.encode(option.default))
            assert expected == value, (kind, option)
    for name in ("medium", "locality", "group_idx", "spec_kind"):
        del document["views"][0][name]
    document["views"][0]["replay_endpoint"] = "none"
    config = broker_config(document)
    assert BrokerConfig().views == config.views
    for field in msgspec.structs.fields(BrokerConfig):
        if struct_in(field.type) is None:
            assert getattr(BrokerConfig(), field.name) == getattr(config, field.name)


def test_a_new_option_of_whatever_type_has_a_line():
    text = example_file(Role)
    assert {"must": "", "ratio": 0.5, "names": ["a"], "inner": {"key": "none"}} == tomllib.loads(uncommented(text))
    assert '# A key. "none" = nobody\'s.\n#key = "none"\n' in text
    assert "# It. Has to be said.\n" in text
    assert list_of(tuple[str, ...]) is str
