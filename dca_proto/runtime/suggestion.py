"""A policy that an invitation suggests, and what a device's owner sees of it before they accept or refuse it.

A suggestion is TOML text with the keys of `[policy]`, without that line, as in a policy file. It changes nothing by
itself. Each of its lines is shown beside the default, and marked if it is looser: then the device would take part in
rounds that it declines by default.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from dca_proto.errors import InputError, UsageError
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.policy import Policy
from dca_proto.runtime.config import read_policy_keys
from dca_proto.runtime.files import read_text
from dca_proto.wording import parse_toml, toml_value

TEXT_BYTES_MAX = 16 << 10
"""The longest suggestion; an invitation has it."""
LARGER_IS_LOOSER = {
    "epsilon_per_round_max", "epsilon_per_period_max", "epsilon_for_reports", "rounds_per_period_max", "delta_max",
    "dimension_max", "accept_p", "rows_of_many",
}  # fmt: skip
SMALLER_IS_LOOSER = {
    "period_days", "clients_min", "honest_min", "colluders_min", "colluders_part_min", "computes_min", "verified",
    "sums_only",
}  # fmt: skip
ANY_IS_STRICTER = {"statistics", "bounds", "trainers", "trusted_computes"}
"""Their defaults are empty, and allow everything."""


class Line(msgspec.Struct, frozen=True):
    """A line of a suggestion: a key, its value and the default as TOML, and how it differs from the default."""

    key: str
    value: str
    default: str
    difference: str

    def __str__(self) -> str:
        return f"{self.key} = {self.value}"


def read_suggestion(path: Path, federation: Federation) -> str:
    """Return a policy file's text as a suggestion: its keys alone, without comments. Raises `UsageError`."""
    try:
        return "".join(f"{line}\n" for line in lines_of(read_text(path, bytes_max=TEXT_BYTES_MAX), federation))
    except UsageError as error:
        raise InputError(f"{path}: {error}") from None


def lines_of(text: str, federation: Federation) -> list[Line]:
    """Return the lines of a suggestion, in the order of a policy's keys. Raises `UsageError` if it is no policy's."""
    try:
        table = parse_toml(text)
    except ValueError as error:
        raise InputError(f"the policy is not TOML: {error}") from None
    read_policy_keys(table, federation)
    usual = Policy()
    return [
        Line(name, toml_value(table[name]), toml_value(default), _difference(name, table[name], default))
        for name in Policy.__struct_fields__
        if name in table
        for default in [getattr(usual, name)]
    ]


def _difference(name: str, value: Any, default: Any) -> str:
    if value == default or (name in ANY_IS_STRICTER and not value):
        return "as by default"
    if name in ANY_IS_STRICTER:
        return "stricter than the default, any"
    is_looser = value > default if name in LARGER_IS_LOOSER else value < default
    return f"{'LOOSER' if is_looser else 'stricter'} than the default, {toml_value(default)}"


def text_of(lines: list[Line]) -> str:
    """Return the policy file of a device whose owner has accepted a suggestion."""
    return "# suggested by the invitation, and accepted at the join\n" + "".join(f"{line}\n" for line in lines)
