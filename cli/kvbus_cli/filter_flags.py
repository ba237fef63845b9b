"""The flags that say whose blocks one wants to see, which several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["GroupIdx", "Locality", "Medium", "Ownership"]

Ownership = Annotated[
    list[str] | None,
    typer.Option(
        "--ownership", metavar="any|primary|NAME", help="Whose blocks: primary = the engine's own. Repeatable."
    ),
]
Medium = Annotated[
    list[str] | None,
    typer.Option("--medium", metavar="MEDIUM", help="GPU, CPU, STORAGE, ... as published; none = absent. Repeatable."),
]
Locality = Annotated[
    list[str] | None,
    typer.Option("--locality", metavar="LOCALITY", help="LOCAL or REMOTE; none = absent. Repeatable."),
]
GroupIdx = Annotated[
    list[str] | None, typer.Option("--group-idx", metavar="N", help="KV-cache group; none = absent. Repeatable.")
]
