"""The source as the tidy tests see it: every module of the product, read and parsed once, and every file of the checkout."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tests.shared_data import CHECKOUT

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """One module of the product.

    Attributes:
        name: Dotted name, as `kvbus.wire.codec`; a package is named without `__init__`.
        path: Place in the checkout, as `kvbus/wire/codec.py`.
        text: Source.
        tree: Parsed source.
    """

    name: str
    path: str
    text: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.endswith("/__init__.py")

    def functions(self) -> Iterator[tuple[str, Function]]:
        """Yield every function with its qualified name, as `TopicFilter.matches`; outer ones first."""
        return _functions(self.tree, "")


@cache
def library() -> tuple[Module, ...]:
    """Every module of `kvbus`, by path."""
    return tuple(_read(CHECKOUT))


@cache
def command_line() -> tuple[Module, ...]:
    """Every module of `kvbus_cli`, by path."""
    return tuple(_read(CHECKOUT / "cli"))


@cache
def tracked_files() -> tuple[str, ...]:
    """Every file of the checkout that git knows, or, where this is no git checkout, every file that a build would take."""
    if (CHECKOUT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, check=True, timeout=60)
        names = [name for name in listed.stdout.decode().split("\0") if name]
    else:
        roots = ["kvbus", "cli", "tests", "deploy", ".ci"]
        paths = [path for root in roots for path in (CHECKOUT / root).rglob("*") if "__pycache__" not in path.parts]
        names = [
            str(path.relative_to(CHECKOUT)) for path in (*paths, CHECKOUT / "README.md", CHECKOUT / "pyproject.toml")
        ]
    return tuple(sorted(name for name in names if (CHECKOUT / name).is_file()))


def length(function: Function) -> int:
    """Lines of a function without its docstring and decorators."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        assert first.end_lineno is not None
        lines -= first.end_lineno - first.lineno + 1
    return lines


def _read(root: Path) -> Iterator[Module]:
    package = "kvbus" if root == CHECKOUT else "kvbus_cli"
    for path in sorted((root / package).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield Module(name, path.relative_to(CHECKOUT).as_posix(), text, ast.parse(text, filename=str(path)))


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"{prefix}{child.name}", child
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)
