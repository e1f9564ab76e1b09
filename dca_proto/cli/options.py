"""Defines the options that several commands share, and parses their values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from dca_proto.errors import UsageError
from dca_proto.runtime.csv_text import parse_delimiter
from dca_proto.wording import nearest, split_list
from inference.bounds import given_bounds


def completing(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return what completes an option's value to one of these names in a shell."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def require_known(option: str, text: str, known: Iterable[str]) -> None:
    """Raise `UsageError` for an unknown name; it lists all known names and the nearest."""
    names = tuple(known)
    if text not in names:
        raise UsageError(f"{option} {text[:64]!r} is unknown{nearest(text[:64], names)}; known: {', '.join(names)}")


def parse_names(text: str | None) -> list[str] | None:
    """Parse ``A,B,C``; a name with a comma stands in double quotes."""
    return None if text is None else [name.strip() for name in split_list(text)]


def parse_bounds(text: str | None) -> dict[str, list[float]] | None:
    """Parse ``COL=LO:HI,...`` or a TOML file to [LO, HI] by column. Raises `UsageError` or `DataError`."""
    if text is None:
        return None
    if "=" not in text and Path(text).suffix != ".toml" and not Path(text).exists():
        raise UsageError(f"--bounds {text!r}: expected COL=LO:HI,... or the name of an existing TOML file")
    return {column: [interval.lower, interval.upper] for column, interval in given_bounds(text).items()}


def parse_parameters(texts: list[str] | None) -> dict[str, Any] | None:
    """Parse ``NAME=JSON`` texts. Raises `UsageError` for anything else."""
    if not texts:
        return None
    parameters = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            parameters[name] = json.loads(value)
        except json.JSONDecodeError:
            raise UsageError(f"--parameter {text!r}: expected NAME=JSON, as in edges=[0,10,20]") from None
    return parameters


def given_settings(context: typer.Context, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the given options that are fields of `kind`, as parsed by their callbacks."""
    given = ((name, context.params.get(name)) for name in kind.__struct_fields__)
    return {name: value for name, value in given if value is not None}


CLIENTS = typer.Option(help="N, the number of clients.")
COMPUTES = typer.Option(help="M, the number of Compute nodes.")
TOLERATE = typer.Option(help="T, how many clients may drop out or collude.")
TOLERATE_TENTH = typer.Option(help=TOLERATE.help, show_default="N / 10")
COLLUDERS = typer.Option(help="c, how many of the T are reserved for colluders.")
EPSILON = typer.Option(help="Privacy budget of each participant for all rounds together.")
DELTA_OF_BUDGET = typer.Option("--delta", help="The budget's delta, far below 1/N.")
EPSILON_OF_CLAIM = typer.Option("--epsilon", help="Epsilon of the claim to test.")
DELTA_OF_CLAIM = typer.Option("--delta", help="Delta of the claim to test.")
BOUND = typer.Option(help="Bound of every column: its values are clamped to ± this.")
DROP = typer.Option(help="K clients that drop out of each round.")
ROWS_MAX = typer.Option(help="R: each client sends the sum of at most R rows; 0: the mean of its rows.")
SEED_OF_KEYS = typer.Option(min=0, help="Derive all keys from it, to repeat a run.")

BOUNDS = "Public bounds of the columns: COL=LO:HI,... or a TOML file."

Bounds = Annotated[str | None, typer.Option(help=BOUNDS, callback=parse_bounds)]
Categories = Annotated[
    list[str] | None, typer.Option(help="Public categories of a text column of the CSV, COL=A,B,C; repeatable.")
]
Delimiter = Annotated[
    str,
    typer.Option(
        help="Sign between the CSV's cells: comma, semicolon, tab, or another; by default as in its first line.",
        callback=parse_delimiter,
        show_default=False,
    ),
]
ColumnNames = Annotated[str | None, typer.Option("--columns", help="Names of columns, A,B,C.", callback=parse_names)]
Features = Annotated[
    str | None,
    typer.Option(help="Columns to learn from, A,B,C; by default all but the target.", callback=parse_names),
]
Config = Annotated[Path, typer.Argument(help="The actor's TOML file.", metavar="CONFIG")]
Journal = Annotated[Path | None, typer.Option(help="File of finished work, from which the same command resumes.")]
Json = Annotated[str | None, typer.Option("--json", help="Write the result to a file, or - for stdout.")]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--parameter", help="Statistic's parameter, NAME=JSON; repeatable.", callback=parse_parameters),
]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw a picture: FILE.png, .svg or .pdf.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", help="Job setting, KEY=VALUE; repeatable. An unknown KEY lists all keys.")
]
Target = Annotated[str | None, typer.Option(help="The column to predict.")]
