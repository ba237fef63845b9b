"""Lines of keys: right for every way in which TOML can be written, and never a crash."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbus.settings.locations import locate

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEXT = '''# first line
age_s = 12
on_loss="ignore"   # = not a key
workers = [
  "w0=tcp://h:1",  # [comment]
  { worker_id = "w1", endpoint = "tcp://h:2" },

  "w2=tcp://h:3",
]
a.b."c d" = """
x = 1
[[no]]
"""

[ingest]
topics = ["a", 'b]', """
c""", "d"]

[[views]]
name = "one"
medium = [
  "CPU"]

[[views]]
  name = 'two'
  [views.inner]
  x = 1979-05-27T07:32:00Z
'''


def paths(value, path=()):
    """Every path of a parsed document."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*path, key))


def test_every_key_and_element_has_its_line():
    lines = locate(TEXT)
    expected = {
        ("age_s",): 2,
        ("on_loss",): 3,
        ("workers",): 4,
        ("workers", 0): 5,
        ("workers", 1): 6,
        ("workers", 1, "endpoint"): 6,
        ("workers", 2): 8,
        ("a",): 10,
        ("a", "b", "c d"): 10,
        ("ingest",): 15,
        ("ingest", "topics"): 16,
        ("ingest", "topics", 2): 16,
        ("ingest", "topics", 3): 17,
        ("views",): 19,
        ("views", 0): 19,
        ("views", 0, "name"): 20,
        ("views", 0, "medium", 0): 22,
        ("views", 1): 24,
        ("views", 1, "name"): 25,
        ("views", 1, "inner", "x"): 27,
    }
    assert expected == {path: lines.get(path) for path in expected}
    assert set(paths(tomllib.loads(TEXT))) == set(lines)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "#",
        'x = ""\ny = ""',
        "x = ''''a'''''\ny = 1",
        'x = """a\\"""b"""\ny = 1',
        'x = "a\\\\"\ny = 1',
        "x = {}\ny = []",
        "x = [[], [[1]], {a = [1]}]\ny = 1",
        "x = -inf # c\r\ny = 0x1F\r\n",
        "[a.b]\nc = 1\n[a.d]\nc = 2",
        "[[a]]\n[[a.b]]\nc = 1\n[[a.b]]\n[[a]]\n[[a.b]]\nc = 3",
        '"" = 1\n"a.b" = 2\n1.2 = 3',
    ],
)
def test_it_walks_over_the_corners_of_the_language(text):
    assert set(paths(tomllib.loads(text))) == set(locate(text))


@given(st.text(alphabet="a1_.= \n\t\r[]{},'\"\\#", max_size=60))
def test_no_text_makes_it_fail_or_find_what_is_not_there(text):
    found = locate(text)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert set(found) == set(paths(document))
