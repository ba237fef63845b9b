"""`kvbus` command lines found in documents and deployment files, checked against the command's own flags.

They are parsed by the command line's own parser and never run. A document that names a flag which does not exist is a bug
report waiting for its reader.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from functools import cache
from typing import Any

import typer.main


@cache
def _tree() -> Any:
    """The command tree: click objects, taken as they come, since whose click they are depends on the release of typer."""
    from kvbus_cli.main import app

    return typer.main.get_command(app)


def shell_blocks(markdown: str) -> list[str]:
    """Return the fenced blocks of a document that are marked as shell, without fences."""
    return re.findall(r"^```(?:bash|sh|shell|console)\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)


def command_lines(shell: str) -> list[list[str]]:
    """Return the arguments behind every `kvbus` that is run in shell text, in order.

    Continuation lines, pipes, `VARIABLE=value` in front, prompts (`$ `), comments and redirections are understood. `...` and
    `…` stand for what the reader fills in and are left out.
    """
    prompts_comments_and_redirections = r"(?m)^\$ |(?:^|(?<=\s))#.*$|(?<=\s)\d?(?:>>?|<)&?[ \t]*\S+"
    plain = re.sub(prompts_comments_and_redirections, "", shell.replace("\\\n", " "))
    lexer = shlex.shlex(plain, posix=True, punctuation_chars="|&;()\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    found: list[list[str]] = []
    current: list[str] | None = None
    is_start = True
    for word in lexer:
        if not word.strip("|&;()\n"):
            current, is_start = None, True
        elif is_start and re.fullmatch(r"\w+=.*|exec|time|sudo|nohup", word):
            continue
        elif is_start:
            is_start = False
            if re.fullmatch(r"(?:.*/)?kvbus", word):
                current = []
                found.append(current)
        elif current is not None and word not in ("...", "…"):
            current.append(word)
    return found


def problem_of(arguments: Sequence[str]) -> str | None:
    """Say what the command line's parser finds wrong with arguments of `kvbus`, or `None`.

    Arguments are parsed, converted and checked for what is required; nothing is run.
    """
    shown = shlex.join(["kvbus", *arguments])
    command, rest = _tree(), list(arguments)
    context = None
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        if name not in command.commands:
            return f"{shown}: there is no command {name!r}, only {', '.join(sorted(command.commands))}"
        command = command.commands[name]
    if {"--help", "-h", "--version"} & set(rest):
        return None
    try:
        context = command.make_context(command.name, rest)
    except Exception as error:
        # Which class it is depends on whose click it is; they all explain themselves alike.
        explain = getattr(error, "format_message", None)
        if explain is None:
            raise
        return f"{shown}: {explain()}"
    context.close()
    return None
