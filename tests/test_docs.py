"""What is written is so: the README's commands and tables, and the docstrings of everything public."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import kvbus
import kvbus.errors
from kvbus_cli.exits import Exit
from tests.command_lines import command_lines, problem_of, shell_blocks
from tests.shared_data import CHECKOUT
from tests.source_tree import Function, library, tracked_files

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")

# Raised for what cannot happen, or by rules of Python that every reader knows.
UNDOCUMENTED = {"AssertionError", "StopIteration", "AttributeError"}


def test_the_readme_names_existing_commands_and_flags() -> None:
    """A reader types what is there."""
    lines = [line for block in shell_blocks(README) for line in command_lines(block)]
    assert lines, "the README shows no command"
    problems = [problem for line in lines if (problem := problem_of(line))]
    assert [] == problems, "\n".join(problems)


def test_commands_named_in_prose_exist() -> None:
    """`kvbus xyz` between backticks is read as a promise too."""
    named = sorted(set(re.findall(r"`kvbus ([a-z][a-z-]*)[^`\n]*`", README)))
    problems = [problem for name in named if (problem := problem_of([name, "--help"]))]
    assert [] == problems, "\n".join(problems)


def test_python_in_the_readme_compiles_and_names_what_exists() -> None:
    """An example is copied before it is read."""
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        compile(block, "README.md", "exec")
    named = set(re.findall(r"\bkvbus\.(?!(?:toml|json)\b)([A-Za-z_]\w*)", README))
    # A room of its own need not have been imported by anybody yet.
    others = sorted(named - set(kvbus.__all__))
    assert [] == [name for name in others if not hasattr(kvbus, name) and find_spec(f"kvbus.{name}") is None]


def test_the_readme_shows_every_command() -> None:
    """What it does not name, nobody finds."""
    from tests.command_lines import _tree

    missing = [name for name in sorted(_tree().commands) if f"`kvbus {name}" not in README]
    assert [] == missing


def test_the_readme_lists_the_exit_codes() -> None:
    """Scripts depend on them."""
    rows = re.findall(r"^\| (\d+) \|", README, re.MULTILINE)
    assert [str(code.value) for code in Exit] == rows


def test_the_two_commands_of_the_readme_stand_first() -> None:
    """One installs and runs the demo, one installs and passes the tests; nothing else is to be set up."""
    first, second, *_ = [block.strip() for block in shell_blocks(README)]
    assert "kvbus demo" in first
    assert "python -m pytest -q" in second
    assert [1, 1] == [first.count("\n") + 1, second.count("\n") + 1]


def test_links_of_the_documents_lead_somewhere() -> None:
    """Relative links to files of the checkout, in every document."""
    dead = []
    for name in tracked_files():
        if name.endswith(".md"):
            path = CHECKOUT / name
            for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
                if "://" not in target and not (path.parent / target).exists():
                    dead.append(f"{name}: {target}")
    assert [] == dead


def test_public_names_are_sorted_and_exist() -> None:
    """`__all__` is the list of promises."""
    assert sorted(kvbus.__all__) == list(kvbus.__all__)
    assert kvbus.__all__
    assert [] == [name for name in kvbus.__all__ if not hasattr(kvbus, name)]
    assert set(kvbus.__all__) <= set(dir(kvbus))
    assert list(kvbus.__all__) == sorted(kvbus._HOMES)


def test_every_all_is_true() -> None:
    """A module's `__all__` names what is there."""
    found = []
    for module in library():
        loaded: Any = import_module(module.name)
        names = list(getattr(loaded, "__all__", ()))
        found += [f"{module.path}: {name} does not exist" for name in names if not hasattr(loaded, name)]
    assert [] == found, "\n".join(found)


def test_public_names_have_docstrings_of_their_own() -> None:
    """Inherited and generated texts explain another thing."""
    found = []
    for name in kvbus.__all__:
        value = getattr(kvbus, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            text = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
            if not text or text.startswith(f"{name}("):
                found.append(name)
    assert [] == found


def test_public_functions_explain_their_arguments() -> None:
    """Every parameter of what `kvbus` exports stands under Args, with its unit and range."""
    found = []
    for name in kvbus.__all__:
        value = getattr(kvbus, name)
        functions = [(name, value)] if inspect.isfunction(value) else []
        if inspect.isclass(value):
            functions = [
                (f"{name}.{each}", function)
                for each, function in vars(value).items()
                if inspect.isfunction(function) and (not each.startswith("_") or each == "__init__")
            ]
        for shown, function in functions:
            text = inspect.getdoc(function) or ""
            parameters = [p for p in inspect.signature(function).parameters if p not in ("self", "cls")]
            lacking = [p for p in parameters if not re.search(rf"^ +\*{{0,2}}{p}(?: \(.*\))?:", text, re.MULTILINE)]
            if lacking and len(text.splitlines()) > 1:
                found.append(f"{shown}: {', '.join(lacking)}")
            elif lacking and len(parameters) > 1:
                found.append(f"{shown}: no Args section")
    assert [] == found, "\n".join(found)


def test_raises_sections_are_complete() -> None:
    """An exception that is not listed is a bug, so what a public function raises by name is listed.

    What a function raises and catches itself does not count; what its callees raise, this test cannot see.
    """
    found = []
    for module in library():
        for name, function in module.functions():
            parts = name.split(".")
            if any(part.startswith("_") and part != "__init__" for part in parts):
                continue
            documented = ast.get_docstring(function) or ""
            if parts[-1] == "__init__":
                documented += _docstring_of_class(module.tree, parts[:-1])
            _, _, section = documented.partition("Raises:\n")
            for raised in sorted(set(_raised(function))):
                if raised not in UNDOCUMENTED and not re.search(rf"\b{raised}\b", section):
                    found.append(f"{module.path}:{function.lineno}: {name} raises {raised} without saying so")
    assert [] == found, "\n".join(found)


def test_docstring_sections_stand_in_one_order() -> None:
    """Args, Returns, Raises: a reader finds the same thing in the same place."""
    order = ["Args:", "Attributes:", "Returns:", "Yields:", "Raises:"]
    found = []
    for module in library():
        for name, function in module.functions():
            lines = (ast.get_docstring(function) or "").splitlines()
            seen = [order.index(line) for line in lines if line in order]
            if seen != sorted(seen):
                found.append(f"{module.path}:{function.lineno}: {name}")
    assert [] == found, "\n".join(found)


def _raised(function: Function) -> Iterator[str]:
    """Names of exceptions that leave a function by `raise Name(...)`, nested functions and caught ones excepted."""

    def walk(nodes: list[Any], caught: frozenset[str]) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
                continue
            if isinstance(node, ast.Raise):
                name = _exception_name(node.exc)
                if name and not _is_caught(name, caught):
                    yield name
            elif isinstance(node, ast.Try):
                handled = {_last(each) for handler in node.handlers for each in _handled(handler)}
                yield from walk(node.body, caught | handled)
                yield from walk(
                    [*node.orelse, *node.finalbody, *(each for h in node.handlers for each in h.body)], caught
                )
            else:
                yield from walk(list(ast.iter_child_nodes(node)), caught)

    return walk(function.body, frozenset())


def _exception_name(node: ast.expr | None) -> str:
    """`raise errors.DecodeError(...)` -> `DecodeError`; what is raised from a variable or a function is unknown: empty."""
    callee = node.func if isinstance(node, ast.Call) else node
    name = _last(callee) if isinstance(callee, (ast.Name, ast.Attribute)) else ""
    return name if _class_of(name) else ""


def _class_of(name: str) -> type[BaseException] | None:
    value = getattr(kvbus.errors, name, None) or getattr(builtins, name, None)
    return value if isinstance(value, type) and issubclass(value, BaseException) else None


def _is_caught(name: str, caught: frozenset[str]) -> bool:
    raised = _class_of(name)
    return raised is not None and any(base.__name__ in caught for base in raised.__mro__)


def _handled(handler: ast.ExceptHandler) -> list[ast.expr]:
    if handler.type is None:
        return [ast.Name("BaseException")]
    return handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]


def _last(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


def _docstring_of_class(tree: ast.Module, path: list[str]) -> str:
    nodes: list[ast.stmt] = tree.body
    text = ""
    for name in path:
        for node in nodes:
            if isinstance(node, ast.ClassDef) and node.name == name:
                nodes, text = node.body, ast.get_docstring(node) or ""
                break
    return text
