"""The JSON schema is a schema, and takes what the reader takes."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import pytest

from kvbus.config import BrokerConfig
from kvbus.settings.example import uncommented
from kvbus.settings.file import broker_problems, readable_broker_config
from kvbus.settings.schema import schema_of
from tests.shared_data import CHECKOUT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

jsonschema = pytest.importorskip("jsonschema")

SCHEMA = schema_of(BrokerConfig, "kvbus broker")


@pytest.fixture(scope="module")
def validator():
    return jsonschema.Draft202012Validator(SCHEMA)


def test_it_is_a_schema_of_2020_12():
    assert "https://json-schema.org/draft/2020-12/schema" == SCHEMA["$schema"]
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_example_file_is_right_by_it(validator):
    text = (CHECKOUT / "deploy" / "kvbus.toml").read_text(encoding="utf-8")
    validator.validate(tomllib.loads(text))
    validator.validate(tomllib.loads(uncommented(text)))


RIGHT = [
    {"workers": ["w0=tcp://h:1", {"worker_id": "w1", "endpoint": "tcp://h:2", "ranks": "0-3"}]},
    {"workers": [{"worker_id": "w1", "endpoint": "tcp://h:2", "ranks": [0, 2], "replay_endpoint": "none"}]},
    {"ingest": {"workers": 2, "topics": ["a"]}, "age_s": 3},
    {"views": [{"profile": "dynamo", "medium": "GPU", "group_idx": [0, "none"], "ranks": [0, "none"]}]},
    {"groups": [{"name": "g", "quorum": 2, "release": "residency", "on_loss": "none"}]},
]

WRONG = [
    {"agee": 1},
    {"age_s": "x"},
    {"workers": "tcp://h:1"},
    {"workers": ["h"]},
    {"workers": [{"worker_id": "w"}]},
    {"streams_max": 1.5},
    {"views": [{"encoding": "json"}]},
    {"views": [{"ranks": ["all"]}]},
    {"groups": [{"on_loss": "clear"}]},
    {"journal_reset": "true"},
]


@pytest.mark.parametrize("document", RIGHT)
def test_schema_and_reader_take_the_same(validator, document):
    assert [] == list(validator.iter_errors(document))
    readable_broker_config(document)
    assert all("workers" in problem.field or "group" in problem.field for problem in broker_problems(document))


@pytest.mark.parametrize("document", WRONG)
def test_schema_and_reader_refuse_the_same(validator, document):
    assert [] != list(validator.iter_errors(document))
    assert [] != broker_problems(document)


def test_ranges_that_a_type_carries_are_in_it():
    class Role(msgspec.Struct):
        """A role."""

        port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 1

    assert {"type": "integer", "minimum": 1, "maximum": 65_535, "default": 1} == schema_of(Role, "r")["properties"][
        "port"
    ]
