"""The shape of the checkout: what lies where, how large it may be, and what must not be in it."""

from __future__ import annotations

import ast
import re
from pathlib import PurePosixPath

import pytest

from tests.shared_data import CHECKOUT
from tests.source_tree import Module, command_line, length, library, tracked_files

MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70

TOP_LEVEL = {"pyproject.toml", "kvbus", "cli", "tests", "deploy", "README.md"}

NOT_NOUNS = {"utils", "util", "helpers", "helper", "common", "misc", "shared", "base", "tools"}

# Modules without a test module of their own, and why.
UNMIRRORED: dict[str, str] = {
    "kvbus/__init__.py": "the public names: test_docs asks for their docstrings, test_rooms that they load lazily",
}

# Test modules that cover a room rather than one module of it: folder -> names.
OF_A_ROOM = {
    "tests": {"rooms", "layout", "docs", "deploy", "command_lines", "conftest"},
    "tests/wire": {"vectors", "fuzz", "protocol", "golden"},
    "tests/streams": {"exhaustive"},
    "tests/aggregate": {"exhaustive", "properties"},
    "tests/broker": {"playbook"},
}

# Folders whose tests mirror no room: they run several together.
FREE_FOLDERS = {
    "tests/integration",
    "tests/deployment",
    "tests/interop",
    "tests/contract",
    "tests/golden",
    "tests/typing",
    "tests/sim",
}

# Spelt so that this file does not hold them. Anything absolute under a home folder is somebody's machine.
MACHINE_OR_REGISTRY = re.compile(
    r"(?<![\w.])/(?:work|root|home|Users)/|pyp[i]\.org|python[h]osted|npm[j]s\.|debia[n]\.org|ubunt[u]\.com"
)

UNFINISHED = re.compile(r"\b(?:TOD[O]|FIXM[E]|XX[X])\b|NotImplemented[E]rror")


def _modules() -> tuple[Module, ...]:
    return (*library(), *command_line())


def test_every_module_has_its_test_module() -> None:
    """The first place to look for how something behaves is the test beside it."""
    missing = [
        f"{module.path}: no {_test_module(module.path)}"
        for module in _modules()
        if module.path not in UNMIRRORED and _has_code(module) and not (CHECKOUT / _test_module(module.path)).exists()
    ]
    assert [] == missing, "\n".join(missing)


def test_every_test_module_has_its_module() -> None:
    """A test left behind by a move tests nothing that anybody would find."""
    expected = {_test_module(module.path) for module in _modules()}
    stray = []
    for path in sorted(path.relative_to(CHECKOUT) for path in (CHECKOUT / "tests").rglob("test_*.py")):
        folder, name = path.parent.as_posix(), path.stem.removeprefix("test_")
        if any(folder == free or folder.startswith(f"{free}/") for free in FREE_FOLDERS):
            continue
        if (
            path.as_posix() not in expected
            and name not in OF_A_ROOM.get(folder, ())
            and not _is_part(path.as_posix(), expected)
        ):
            stray.append(f"{path}: no module, nor a name in OF_A_ROOM")
    assert [] == stray, "\n".join(stray)


def test_the_tables_of_exceptions_hold_nothing_stale() -> None:
    """An exception outlives its reason unless somebody looks."""
    paths = {module.path for module in _modules()}
    assert [] == [path for path in UNMIRRORED if path not in paths]
    assert [] == [path for path in UNMIRRORED if (CHECKOUT / _test_module(path)).exists()]


def test_modules_are_of_a_readable_size() -> None:
    """Beyond five hundred lines it is no longer one noun."""
    found = [
        f"{module.path}: {lines} lines"
        for module in _modules()
        if (lines := module.text.count("\n")) > MODULE_LINES_MAX
    ]
    assert [] == found, "\n".join(found)


def test_functions_fit_a_screen() -> None:
    """Seventy lines, docstring aside; the aim is forty. The parameters of a command are its table of flags."""
    found = []
    for module in _modules():
        for name, function in module.functions():
            is_command = module.name.startswith("kvbus_cli.commands.")
            lines = length(function) - (function.body[0].lineno - function.lineno if is_command else 0)
            if lines > FUNCTION_LINES_MAX:
                found.append(f"{module.path}:{function.lineno}: {name} has {lines} lines")
    assert [] == found, "\n".join(found)


def test_modules_are_named_by_nouns() -> None:
    """What goes into `utils` is never found again."""
    found = [module.path for module in _modules() if NOT_NOUNS & set(PurePosixPath(module.path).with_suffix("").parts)]
    assert [] == found


def test_packages_say_what_they_are_for() -> None:
    """Each room's docstring says what it is for and what it refuses to hold."""
    found = [
        f"{module.path}: its docstring says nothing"
        for module in _modules()
        if module.is_package and len(ast.get_docstring(module.tree) or "") < 30
    ]
    assert [] == found, "\n".join(found)


def test_the_top_level_is_as_agreed() -> None:
    """Tools put their files there; we do not."""
    names = {PurePosixPath(name).parts[0] for name in tracked_files()}
    assert set() == {name for name in names if name not in TOP_LEVEL and not name.startswith(".")}


def test_no_file_names_a_machine_or_a_registry() -> None:
    """The checkout works elsewhere, behind other mirrors, and tells nothing about where it was written."""
    found = [f"{name}:{line}: {text}" for name, line, text in _lines_with(MACHINE_OR_REGISTRY)]
    assert [] == found, "\n".join(found)


def test_nothing_is_unfinished() -> None:
    """What is there works; what does not is not there."""
    found = [f"{name}:{line}: {text}" for name, line, text in _lines_with(UNFINISHED)]
    assert [] == found, "\n".join(found)


def test_tests_never_sleep_and_skip_in_one_place_only() -> None:
    """A sleep is too short on a busy machine and too long on any other; a skipped test is one that nobody has."""
    pattern = re.compile(r"\btime\.slee[p]\(|\basyncio\.slee[p]\((?!0\))|pytest\.ski[p]\(|pytest\.mark\.ski[p]\b")
    found = [
        f"{name}:{line}: {text}"
        for name, line, text in _lines_with(pattern)
        if name.startswith("tests/") and name != "tests/shared_data.py"
    ]
    assert [] == found, "\n".join(found)


@pytest.mark.parametrize("path", ["root/x", "home/me/x'", "work/x"])
def test_the_machine_check_sees_what_it_should(path: str) -> None:
    """A check that cannot fail is worse than none."""
    assert MACHINE_OR_REGISTRY.search(f"see '/{path}")


@pytest.mark.parametrize("path", ["a/{work}/x", "../{home}/x", "/var/run/kvbus", "tests/{work}/", "$HOME/x"])
def test_the_machine_check_lets_other_paths_pass(path: str) -> None:
    """Folders of our own may be called what they like."""
    assert not MACHINE_OR_REGISTRY.search(path.format(work="work", home="home"))


def _test_module(path: str) -> str:
    """`kvbus/wire/codec.py` -> `tests/wire/test_codec.py`; a package is tested under its own name, beside its folder."""
    parts = list(PurePosixPath(path).with_suffix("").parts)[1:]
    if parts[0] == "kvbus_cli":
        parts = ["cli", *(part for part in parts[1:] if part != "commands")]
    if parts[-1] == "__init__":
        parts.pop()
    return "/".join(["tests", *parts[:-1], f"test_{parts[-1] if parts else 'package'}.py"])


def _has_code(module: Module) -> bool:
    """Whether a module does anything: constants, plain structures, protocols and imports have nothing to test."""
    return any(_does_something(statement) for _, function in module.functions() for statement in function.body)


def _does_something(statement: ast.stmt) -> bool:
    is_text_or_dots = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return not is_text_or_dots and not isinstance(statement, ast.Pass)


def _is_part(path: str, expected: set[str]) -> bool:
    """Whether a test module covers one side of a module: `test_codec_fuzz.py` beside `test_codec.py`."""
    stem = path.removesuffix(".py")
    return any(stem.startswith(f"{each.removesuffix('.py')}_") for each in expected)


def _lines_with(pattern: re.Pattern[str]) -> list[tuple[str, int, str]]:
    found = []
    for name in tracked_files():
        try:
            text = (CHECKOUT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if pattern.search(text):
            lines = enumerate(text.splitlines(), start=1)
            found += [(name, number, line.strip()[:120]) for number, line in lines if pattern.search(line)]
    return found
