"""Checks the JSON output of commands against the schema that `dca schema` prints, by jsonschema, which is independent
of this project's types."""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import entry_points
from typing import Any

import jsonschema

from dca_proto.cli import GROUP, output_of
from dca_proto.cli.output import schema_of

COMMANDS = {entry.name: entry for entry in entry_points(group=GROUP)}


@cache
def validator(*path: str) -> jsonschema.Draft202012Validator:
    """Return the validator of the schema of ``dca PATH --json``."""
    schema = schema_of(output_of(COMMANDS[path[0]], path[-1]))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def parsed(text: str, *path: str) -> Any:
    """Parse the output of ``dca PATH --json``; assert that it fits its schema."""
    value = json.loads(text)
    validator(*path).validate(value)
    return value
