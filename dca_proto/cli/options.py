"""Options that several commands have: where the result goes, lists of names, public bounds, further parameters."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from dca_proto.errors import UsageError
from dca_proto.wording import nearest
from inference.bounds import given_bounds

Json = Annotated[str | None, typer.Option("--json", help="Write the result to a file, or - for stdout.")]
DELTA = 1e-5
"""The delta of a budget, where a command is given none."""


def require_known(option: str, text: str, known: Iterable[str]) -> None:
    """Refuse a name that is not among the known ones. Raises `UsageError` that names the nearest, and all."""
    names = tuple(known)
    if text not in names:
        raise UsageError(f"{option} {text[:64]!r} is unknown{nearest(text[:64], names)}; known: {', '.join(names)}")


def parse_names(text: str | None) -> list[str] | None:
    """``A,B,C``."""
    return None if text is None else [name.strip() for name in text.split(",")]


def parse_bounds(text: str | None) -> dict[str, list[float]] | None:
    """``COL=LO:HI,...`` or a TOML file, as [LO, HI] of each column. Raises an error for anything else."""
    if text is None:
        return None
    if "=" not in text and Path(text).suffix != ".toml" and not Path(text).exists():
        raise UsageError(f"--bounds {text!r}: expected COL=LO:HI,... or the name of an existing TOML file")
    return {column: [interval.lower, interval.upper] for column, interval in given_bounds(text).items()}


def parse_parameters(texts: list[str] | None) -> dict[str, Any] | None:
    """``NAME=JSON`` each. Raises `UsageError` for anything else."""
    if not texts:
        return None
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            raise UsageError(f"--parameter {text!r}: expected NAME=JSON, as in edges=[0,10,20]") from None
    return found


def given_settings(context: typer.Context, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The options that were given and are settings of this kind, parsed by their callbacks."""
    given = ((name, context.params.get(name)) for name in kind.__struct_fields__)
    return {name: value for name, value in given if value is not None}


Bounds = Annotated[
    str | None,
    typer.Option(help="Public bounds of these columns: COL=LO:HI,... or a TOML file.", callback=parse_bounds),
]
Colluders = Annotated[int | None, typer.Option(help="c, how many of the T are reserved for colluders.")]
