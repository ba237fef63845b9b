"""The rooms of the product and what each may know, read from the source.

Rules are pure objects: bytes and time go in, values come out. What only a shell may touch (sockets, threads, clocks, files,
logs, chance) is listed here, and so is which room may import which. One table each; a new room needs a line in it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.set_order import set_iterations
from tests.source_tree import Module, command_line, library

NOUNS = {"events", "errors", "config", "endpoints"}

# Room -> rooms that it may import besides itself. Downwards in this list is backwards in an event's walk.
MAY_IMPORT = {
    "errors": set(),
    "events": {"errors"},
    "endpoints": {"errors"},
    "config": NOUNS | {"views", "security"},  # a view's options hold its filter
    "security": NOUNS | {"connections", "sockets"},
    "settings": NOUNS | {"views"},
    "discovery": NOUNS | {"settings"},
    "wire": NOUNS,
    "streams": NOUNS | {"wire"},
    "aggregate": NOUNS,
    "views": NOUNS | {"wire"},
    "ipc": NOUNS,
    "connections": NOUNS | {"sockets", "security"},
    "polling": {"connections"},
    "sockets": NOUNS | {"ipc", "connections", "security"},
    "ops": NOUNS | {"broker", "discovery", "security", "streams"},
    "broker": NOUNS
    | {"discovery", "wire", "streams", "aggregate", "views", "polling", "sockets", "security", "connections"},
    "publisher": NOUNS | {"wire", "streams", "sockets", "security", "connections"},
    "subscriber": NOUNS | {"wire", "streams", "views", "sockets", "security", "connections"},
    "doctor": NOUNS | {"wire", "views", "settings", "sockets", "security", "connections"},
    "offload": NOUNS | {"wire"},
    "worker": NOUNS | {"wire", "streams", "offload", "publisher", "sockets", "security", "ops"},
    "bench": NOUNS | {"wire", "streams", "aggregate", "views", "polling", "sockets", "security", "broker", "ops"},
    "sim": NOUNS | {"wire", "streams", "aggregate", "views", "broker", "subscriber", "offload"},
}

# What is in these is pure, and so may import only what is pure.
PURE = NOUNS | {
    "settings",
    "discovery",
    "security",
    "wire",
    "streams",
    "aggregate",
    "views",
    "broker",
    "subscriber",
    "doctor",
    "offload",
    "sim",
}

# The shells among them: they give a pure node its sockets, its thread and its clock.
SHELLS = {
    "kvbus.broker",
    "kvbus.broker.journal",
    "kvbus.broker.journal_file",
    "kvbus.broker.links",
    "kvbus.broker.locks",
    "kvbus.broker.loop",
    "kvbus.broker.server",
    "kvbus.discovery.lookups",
    "kvbus.discovery.watch",
    "kvbus.security.doors",
    "kvbus.security.gate",
    "kvbus.security.key_files",
    "kvbus.doctor.examination",
    "kvbus.doctor.knocking",
    "kvbus.subscriber",
    "kvbus.subscriber.loop",
    "kvbus.subscriber.mailbox",
    "kvbus.subscriber.replay",
    "kvbus.subscriber.subscriber",
}

# fmt: off
IMPURE_MODULES = frozenset({
    "asyncio", "concurrent", "ctypes", "fcntl", "http", "logging", "multiprocessing", "os", "pathlib", "queue", "resource",
    "sched", "secrets", "select", "selectors", "shutil", "signal", "socket", "socketserver", "sqlite3", "ssl", "structlog",
    "subprocess", "tempfile", "threading", "time", "typer", "urllib", "uuid", "zmq",
})
# fmt: on

IMPURE_CALLS = frozenset({"open", "print", "input", "breakpoint", "exec", "eval", "__import__"})

CLOCK_READINGS = frozenset({"now", "utcnow", "today"})


def test_pure_rooms_touch_nothing_outside() -> None:
    """A rule that reads a clock or a socket by itself cannot be tested without waiting, nor simulated."""
    found = [f"{module.path}:{line}: {what}" for module in _pure_modules() for line, what in _impurities(module)]
    assert [] == found, "\n".join(found)


def test_rooms_import_upwards_only() -> None:
    """Else a change of one rule spreads through all of them, and nobody finds the room for the next one."""
    found = []
    for module in library():
        room = _room(module.name)
        if module.name == "kvbus":
            continue
        if room not in MAY_IMPORT:
            found.append(f"{module.path}: room {room!r} is new: say in MAY_IMPORT what it may import")
            continue
        for line, target in dict.fromkeys(_kvbus_imports(module)):
            if target == "kvbus":
                found.append(f"{module.path}:{line}: import from the module itself, not from the public face `kvbus`")
            elif _room(target) not in MAY_IMPORT[room] | {room}:
                found.append(f"{module.path}:{line}: {room} may not import {target}")
            elif _is_pure(module.name) and not _is_pure(target):
                found.append(f"{module.path}:{line}: a pure module imports the shell {target}")
    assert [] == found, "\n".join(found)


def test_the_aggregator_does_not_know_msgpack() -> None:
    """It counts opaque keys: the broker gives it raw bytes, a caller in Python gives it values."""
    found = [
        f"{module.path}:{line}: {name}"
        for module in library()
        if _room(module.name) == "aggregate"
        for line, name in _imports(module)
        if name.startswith(("msgspec.msgpack", "kvbus.wire"))
    ]
    assert [] == found, "\n".join(found)


def test_nothing_imports_the_command_line() -> None:
    """The command is one user of the library among others."""
    found = [
        f"{module.path}:{line}" for module in library() for line, name in _imports(module) if _top(name) == "kvbus_cli"
    ]
    assert [] == found, "\n".join(found)


def test_command_modules_import_nothing_heavy() -> None:
    """`kvbus --help` loads every command module, and has to answer at once."""
    heavy = {"zmq", "structlog", "rich", "asyncio", "prometheus_client"}
    found = []
    for module in command_line():
        for line, name in _imports(module, top_level_only=True):
            is_shell = _top(name) == "kvbus" and name != "kvbus" and not _is_pure(name)
            if _top(name) in heavy or is_shell or (name == "kvbus" and module.name.startswith("kvbus_cli.commands.")):
                found.append(f"{module.path}:{line}: import {name} inside the function that needs it")
    assert [] == found, "\n".join(found)


def test_click_is_reached_through_typer_only() -> None:
    """Newer releases of typer carry their own copy of click; importing the other one gives classes that never match."""
    found = [
        f"{module.path}:{line}" for module in command_line() for line, name in _imports(module) if _top(name) == "click"
    ]
    assert [] == found, "\n".join(found)


def test_pure_rooms_iterate_no_set_whose_order_shows() -> None:
    """The order of a set of texts or bytes differs from process to process, and with it the bytes that we send."""
    found = [
        f"{module.path}:{line}: {what}"
        for module in _pure_modules()
        for line, what in set_iterations(module.tree, module.text)
    ]
    assert [] == found, "\n".join([*found, "(sort it, use a dict, or end the line with `# order unseen: <why>`)"])


def test_the_table_of_shells_holds_nothing_stale() -> None:
    """A name left in it would make the next module of that name a shell in silence."""
    assert set() == SHELLS - {module.name for module in library()}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("for x in {'a', 'b'}: send(x)", 1),
        ("names: set[str] = set()\nfor name in names: send(name)", 1),
        ("class A:\n  def __init__(self): self.a: set[bytes] = set()\n  def go(self): return [x for x in self.a]", 1),
        ("def f(x: frozenset[str]): return list(x)", 1),
        ("def f(x: frozenset[str]): return ','.join(x)", 1),
        ("def f(x: set[str]): return sorted(x), len(x), 'a' in x, any(y for y in x), {y for y in x}", 0),
        ("def f(x: set[int]): return list(x)", 0),
        ("def f(x: dict[str, int]): return list(x)", 0),
        ("def f(x: set[str]): return list(x)  # order unseen: counted only", 0),
        ("class A:\n  seen: set[str]\n  def go(self): return list(self.seen)", 1),
        ("def f(): x = {'a'}\ndef g(x): return list(x)", 0),
        ("X = {'a'}\ndef g(): return list(X)", 1),
    ],
)
def test_the_set_check_sees_what_it_should(source: str, expected: int) -> None:
    """A check that cannot fail is worse than none."""
    assert expected == len(list(set_iterations(ast.parse(source), source)))


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from os import path",
        "import random\nx = random.random()",
        "import random\nx = random.Random()",
        "from random import choice",
        "x = open('f')",
        "import gzip\nx = gzip.open('f')",
        "from datetime import datetime\nx = datetime.now()",
        "def f():\n  import zmq",
    ],
)
def test_the_purity_check_sees_what_it_should(source: str) -> None:
    """A check that cannot fail is worse than none."""
    assert 1 == len(list(_impurities(Module("kvbus.x", "kvbus/x.py", source, ast.parse(source)))))


def test_random_numbers_may_arrive_as_an_object() -> None:
    """`random.Random` is a type in a signature, and a generator with a given seed is no chance."""
    source = "import random\ndef f(rng: random.Random): return rng.random()\nx = random.Random(7)"
    assert [] == list(_impurities(Module("kvbus.x", "kvbus/x.py", source, ast.parse(source))))


def test_the_package_loads_its_shells_lazily() -> None:
    """`import kvbus` for `decode_batch` alone must not start ZeroMQ."""
    assert set() == {"zmq", "structlog", "typer", "rich"} & _loaded_after("import kvbus")


def test_the_publisher_needs_pyzmq_and_msgspec_alone() -> None:
    """It goes into engines' processes, where every further dependency is one too many."""
    loaded = _loaded_after(
        "import kvbus.publisher; from kvbus import Publisher", blocked=("typer", "structlog", "rich")
    )
    assert set() == loaded - _loaded_after("import zmq, msgspec") - set(sys.stdlib_module_names) - {"kvbus"}


def _loaded_after(statement: str, blocked: tuple[str, ...] = ()) -> set[str]:
    """Top-level names of what a fresh interpreter has loaded because of a statement."""
    program = (
        f"import sys; before = set(sys.modules); sys.modules.update(dict.fromkeys({blocked!r})); {statement}\n"
        f"print(*sorted({{name.partition('.')[0] for name in set(sys.modules) - before}} - set({blocked!r})))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert "" == done.stderr
    return set(done.stdout.split())


def _pure_modules() -> Iterator[Module]:
    return (module for module in library() if _is_pure(module.name))


def _is_pure(name: str) -> bool:
    return _room(name) in PURE and name not in SHELLS


def _room(name: str) -> str:
    """`kvbus.wire.codec` -> `wire`."""
    return name.split(".")[1] if "." in name else ""


def _top(name: str) -> str:
    return name.partition(".")[0]


def _imports(module: Module, top_level_only: bool = False) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of everything imported, also inside functions; `from a import b` yields `a.b`."""
    for node in module.tree.body if top_level_only else ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            package = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
            base = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            source = ".".join(filter(None, [base, node.module or ""]))
            for alias in node.names:
                yield node.lineno, f"{source}.{alias.name}"


def _kvbus_imports(module: Module) -> Iterator[tuple[int, str]]:
    """Yield line and module for imports within the library; `from kvbus import Name` yields `kvbus`."""
    known = {each.name for each in library()}
    for line, name in _imports(module):
        if _top(name) == "kvbus":
            while name not in known:
                name = name.rpartition(".")[0]  # noqa: PLW2901
            yield line, name


def _impurities(module: Module) -> Iterator[tuple[int, str]]:
    for line, name in _imports(module):
        if _top(name) in IMPURE_MODULES:
            yield line, f"imports {name}"
        elif _top(name) == "random" and name not in ("random", "random.Random"):
            yield line, f"imports {name}; take a random.Random as an argument"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            yield node.lineno, f"calls {node.func.id}()"
        elif isinstance(node, ast.Call) and _is_random_class(node.func) and not node.args:
            yield node.lineno, "random.Random() without a seed"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "random" and node.attr != "Random":
                yield node.lineno, f"uses random.{node.attr}; take a random.Random as an argument"
            elif node.value.id in ("gzip", "io", "bz2", "lzma", "codecs") and node.attr == "open":
                yield node.lineno, f"uses {node.value.id}.open"
            elif node.value.id in ("datetime", "date") and node.attr in CLOCK_READINGS:
                yield node.lineno, f"reads the clock with {node.value.id}.{node.attr}"


def _is_random_class(node: ast.expr) -> bool:
    return ast.unparse(node) in ("random.Random", "Random")
