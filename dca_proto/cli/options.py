"""Defines the options that several commands share, and parses their values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
import typer

from dca_proto.aggregate import PublicParameters
from dca_proto.errors import UsageError
from dca_proto.protocol.terms import Windows, description_of, examples_of
from dca_proto.runtime.csv_text import parse_delimiter
from dca_proto.wording import nearest, parse_json, split_list
from inference.bounds import Interval, given_bounds


def completing(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return what completes an option's value to one of these names in a shell."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def require_known(option: str, text: str, choices: Iterable[str]) -> None:
    """Raise `UsageError` for an unknown name; it lists all known names and the nearest."""
    names = tuple(choices)
    if text not in names:
        raise UsageError(f"{option} {text[:64]!r} is unknown{nearest(text[:64], names)}; known: {', '.join(names)}")


def parse_names(text: str | None) -> list[str] | None:
    """Parse ``A,B,C``; a name with a comma stands in double quotes."""
    return None if text is None else [name.strip() for name in split_list(text)]


def parse_bounds(text: str | None) -> dict[str, list[float]] | None:
    """Parse ``COL=LO:HI,...`` or a TOML file to [LO, HI] by column. Raises `UsageError` or `DataError`."""
    given = parse_intervals(text)
    return None if given is None else {column: [ends.lower, ends.upper] for column, ends in given.items()}


def parse_job_bounds(text: str | None) -> dict[str, list[Any]] | None:
    """Parse the same to [LO, HI], or to the labels of a column of texts, as a job states them."""
    given = parse_intervals(text)
    if given is None:
        return None
    return {column: list(ends.labels) if ends.labels else [ends.lower, ends.upper] for column, ends in given.items()}


def parse_intervals(text: str | None) -> dict[str, Interval] | None:
    """Parse ``COL=LO:HI,...`` or a TOML file to intervals. Raises `UsageError` or `DataError`."""
    if text is None:
        return None
    if "=" not in text and Path(text).suffix != ".toml" and not Path(text).exists():
        raise UsageError(f"--bounds {text!r}: expected COL=LO:HI,... or the name of an existing TOML file")
    return given_bounds(text)


def parse_parameters(texts: list[str] | None) -> PublicParameters | None:
    """Parse ``NAME=JSON`` texts. Raises `UsageError` for anything else."""
    if not texts:
        return None
    parameters = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            parameters[name] = parse_json(value)
        except ValueError:
            raise UsageError(f"--parameter {text!r}: expected NAME=JSON, as in edges=[0,10,20]") from None
    return parameters


Chosen = dict[str, Any]
"""The options that the user gave, parsed, by the name of the record's field."""
Command = Callable[..., Any]


def with_options(
    kind: type[msgspec.Struct],
    *,
    without: Iterable[str] = (),
    required: Iterable[str] = (),
    shown: Mapping[str, str] = {},
    **own: Any,
) -> Callable[[Command], Command]:
    """Give a command an option for each field of a record, in place of its parameter `chosen`.

    Type, default and help of an option are those of the field, unless the command has a parameter of that name.

    Args:
        kind: the record. without: fields that are no options. required: options that must be given; others are absent
            from `chosen` if the user did not give them.
        shown: defaults to show in the help, if the field has none. own: annotations of options, by field.
    """

    def decorate(command: Command) -> Command:
        signature, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
        skipped = {*without, *signature.parameters}
        fields = {field.name: field for field in msgspec.structs.fields(kind) if field.name not in skipped}
        fields = dict(sorted(fields.items(), key=lambda item: item[0] in Windows.__struct_fields__))  # times come last
        added = {name: own.get(name) or _annotation(field, shown.get(name)) for name, field in fields.items()}

        @functools.wraps(command)
        def call(**values: Any) -> Any:
            options = {name: values.pop(name, None) for name in added}
            if "parameters" in options:
                options["parameters"] = parse_parameters(options["parameters"])
            return command(chosen={name: value for name, value in options.items() if value is not None}, **values)

        types = {**{name: hint for name, hint in hints.items() if name != "chosen"}, **added}
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            new = [parameter]
            if parameter.name == "chosen":
                defaults = {name: parameter.empty if name in required else None for name in added}
                new = [parameter.replace(name=name, default=default) for name, default in defaults.items()]
            parameters += [each.replace(kind=each.KEYWORD_ONLY, annotation=types[each.name]) for each in new]
        call.__dict__["__signature__"] = signature.replace(parameters=parameters, return_annotation=types["return"])
        call.__annotations__ = types
        return call

    return decorate


def _annotation(field: msgspec.structs.FieldInfo, shown: str | None) -> Any:
    """Return the annotation of a field's option: its type, help, default and completion."""
    if field.name in _PARSED:
        return _PARSED[field.name]
    declared = get_args(field.type)[0] if hasattr(field.type, "__metadata__") else field.type
    text, examples = description_of(field.type), examples_of(field.type)
    if shown is None and isinstance(field.default, int | float | str) and field.default:
        shown = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
    option = typer.Option(
        *([f"--{field.name.replace('_', '-')}"] if declared is bool else []),
        help=text,
        show_default=shown or False,
        callback=parse_names if declared == tuple[str, ...] else None,
        autocompletion=completing(examples) if examples else None,
    )
    return Annotated[(declared if declared in (int, float, str, bool) else str) | None, option]


BOUND = typer.Option(help="Bound of every column: its values are clamped to ± this.")
DROP = typer.Option(help="K clients that drop out of each round.")
SEED_OF_KEYS = typer.Option(min=0, help="Derive all keys from it, to repeat a run.")

BOUNDS = "Public bounds of the columns: COL=LO:HI,... or a TOML file."

Bounds = Annotated[str | None, typer.Option(help=BOUNDS, callback=parse_bounds)]
JobBounds = Annotated[str | None, typer.Option(help=BOUNDS, callback=parse_job_bounds)]
Categories = Annotated[
    list[str] | None,
    typer.Option(help="Public categories of a text column, COL=A,B,C, in the order of their codes; repeatable."),
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
FastNoise = Annotated[bool, typer.Option("--fast-noise", help="Fast inexact noise. For emulation only: not private.")]
Json = Annotated[str | None, typer.Option("--json", help="Write the result to a file, or - for stdout.")]
Parameters = Annotated[
    list[str] | None, typer.Option("--parameter", help="Statistic's parameter, NAME=JSON; repeatable.")
]
"""For `parse_parameters`: typer makes a list of what a callback returns for a repeatable option."""
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw a picture: FILE.png, .svg or .pdf.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", help="Job setting, KEY=VALUE; repeatable. An unknown KEY lists all keys.")
]
Target = Annotated[str | None, typer.Option(help="The column to predict.")]

_PARSED = {"bounds": Bounds, "columns": ColumnNames, "features": Features, "parameters": Parameters, "target": Target}
"""The options with a parser of their own, or a help text for commands, by field."""
