"""Finds where a set of texts or bytes is iterated in its own order, which differs from process to process.

A heuristic: what is a set is told by a literal, a call of `set` or an annotation, of a name in the same function, a name of the
module, or an attribute of that spelling anywhere in the module. Sets annotated as holding numbers or enums are left alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

# Who takes a set apart without showing its order, and who shows it.
ORDER_BLIND = frozenset({"sorted", "len", "sum", "any", "all", "min", "max", "set", "frozenset", "Counter"})
ORDER_SHOWING = frozenset(
    {"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "join", "extend", "chain", "deque"}
)


def set_iterations(tree: ast.Module, text: str) -> Iterator[tuple[int, str]]:
    """Yield line and description of every iteration over a set whose order can be seen.

    A line that ends in `# order unseen: <why>` is excused.
    """
    lines = text.splitlines()
    attributes = {spelling for spelling in _names_of_sets(ast.walk(tree)) if "." in spelling}
    outside = list(_walk_outside_functions(tree))
    shared = attributes | _names_of_sets(outside)
    scopes = [(outside, shared)]
    for function in _outermost_functions(tree):
        nodes = list(ast.walk(function))
        own = {node.arg for node in nodes if isinstance(node, ast.arg)} | _assigned(nodes)
        scopes.append((nodes, (shared - own) | _names_of_sets(nodes)))
    for nodes, named in scopes:
        for each in _iterated(nodes):
            if _is_set(each, named) and "# order unseen:" not in lines[each.lineno - 1]:
                yield each.lineno, f"iterates the set `{ast.unparse(each)}`"


def _iterated(nodes: list[ast.AST]) -> Iterator[ast.expr]:
    """Everything that is taken apart in order."""
    blind = {
        id(argument)
        for call in nodes
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ORDER_BLIND
        for argument in call.args
    }
    for node in nodes:
        if isinstance(node, ast.For):
            yield node.iter
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.DictComp)) and id(node) not in blind:
            yield from (generator.iter for generator in node.generators)
        elif isinstance(node, ast.Call) and _called(node) in ORDER_SHOWING and id(node) not in blind:
            yield from node.args
        elif isinstance(node, ast.Starred):
            yield node.value


def _called(call: ast.Call) -> str:
    return (
        call.func.id
        if isinstance(call.func, ast.Name)
        else call.func.attr
        if isinstance(call.func, ast.Attribute)
        else ""
    )


def _is_set(node: ast.expr, named: set[str]) -> bool:
    if isinstance(node, (ast.Set, ast.SetComp)):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("set", "frozenset")
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)):
        return _is_set(node.left, named)
    return ast.unparse(node) in named


def _names_of_sets(nodes: Iterable[ast.AST]) -> set[str]:
    """Spellings (`names`, `self.names`) that an annotation or an assignment makes a set."""
    named: set[str] = set()
    excluded: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            fields = _names_of_sets(field for field in node.body if isinstance(field, ast.AnnAssign))
            named.update(f"self.{field}" for field in fields)
        elif isinstance(node, ast.arg) and node.annotation is not None:
            _sort(node.arg, node.annotation, named, excluded)
        elif isinstance(node, ast.AnnAssign):
            _sort(ast.unparse(node.target), node.annotation, named, excluded)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and _is_set(node.value, set()):
            named.add(ast.unparse(node.targets[0]))
    return named - excluded


def _sort(spelling: str, annotation: ast.expr, named: set[str], excluded: set[str]) -> None:
    text = ast.unparse(annotation)
    is_set = text.startswith(("set[", "frozenset[", "AbstractSet[", "Set[", "MutableSet["))
    (named if is_set and ("str" in text or "bytes" in text) else excluded).add(spelling)


def _assigned(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _outermost_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield child
        else:
            yield from _outermost_functions(child)


def _walk_outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _walk_outside_functions(child)
