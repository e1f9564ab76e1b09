"""Sensors of Home Assistant, from the SQLite database of its recorder.

The tables are those since schema 38, Home Assistant 2023.4 (`homeassistant/components/recorder/db_schema.py` there):

    states_meta      metadata_id, entity_id
    states           metadata_id, state (a text of at most 255 characters), last_updated_ts (Unix seconds)
    statistics_meta  id, statistic_id (an entity's id)
    statistics       metadata_id, start_ts (Unix seconds), mean; one row an hour, kept for ever
    schema_changes   schema_version

Home Assistant writes a state when it changes: the last one holds until the next. While an entity is away, its state is
a text such as ``unavailable``, which counts as missing.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

import msgspec

from dca_proto.errors import InputError
from dca_proto.protocol.wire.fields import WindowSeconds
from dca_proto.runtime.sources.base import (
    Listed,
    Source,
    TimeoutSeconds,
    check_columns,
    check_listed,
    number_of,
    table_of,
)
from dca_proto.runtime.sources.sqlite import opened
from dca_proto.runtime.table import Say, Table
from dca_proto.wording import duration, nearest

_SCHEMA_LEAST = 38
_STATES_MAX = 1_000_000
_AWAY = ("unavailable", "unknown")
_SWITCH: Mapping[object, float] = {"on": 1.0, "off": 0.0}


class HomeAssistantSource(Source, frozen=True, kw_only=True):
    """``home_assistant``: entities of Home Assistant, from its recorder's database in SQLite, which is only read.

    A state ``on`` or ``off`` counts as 1 or 0. With another database, write a query of its tables (`postgres`).

    Args:
        home_assistant: the database, ``home-assistant_v2.db``.
        entities: an entity's id by column: ``{ temperature = "sensor.kitchen_temperature" }``.
        take: ``last``: one row, the present states. ``mean``: one row, each state weighted with how long it held in
            the window. ``hours``: one row for each hour of the window that Home Assistant's long-term statistics have,
            with the hour's means.
        window_s: for ``last``, how old the newest state of any entity may be: if it is older, the recorder has stopped.
        timeout_s: how long it may take.
        categories: of its columns of texts, in the order of their codes (`dca_proto.statistics.categories`); only the
            last states can be texts.
    """

    key: ClassVar[str] = "home_assistant"
    advice: ClassVar[str] = "check the database"

    home_assistant: Path
    entities: dict[str, str]
    take: Literal["last", "mean", "hours"] = "last"
    window_s: WindowSeconds = 3600
    timeout_s: TimeoutSeconds = 10.0
    categories: Listed = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_columns("[data] entities", tuple(self.entities))
        check_listed("[data] entities", self.entities, self.categories, self.take)
        if not self.window_s:
            raise InputError("[data] window_s is 0; give a number of seconds, such as 3600")

    @property
    def is_there(self) -> bool:
        return self.home_assistant.exists()

    def read(self, say: Say) -> Table:
        until_s = time.time()
        since_s = until_s - self.window_s
        with opened(self.home_assistant, self.timeout_s) as database:
            self._require_schema(database)
            if self.take == "hours":
                rows = self._hours(database, since_s)
            else:
                ids = self._ids(database, "states_meta", "metadata_id", "entity_id")
                self._require_fresh(database, since_s)
                rows = [[self._one(column, database, entity, since_s, until_s)
                         for column, entity in zip(self.entities, ids, strict=True)]]  # fmt: skip
        return table_of(tuple(self.entities), rows, self.place, say, self.categories)

    def _one(self, column: str, database: sqlite3.Connection, entity: int, since_s: float, until_s: float) -> object:
        if self.take == "mean":
            return _mean(database, entity, since_s, until_s)
        state = _last(database, entity)
        if column in self.categories:
            return None if state in _AWAY and state not in self.categories[column] else state
        return _value(state)

    def _require_schema(self, database: sqlite3.Connection) -> None:
        """Raise `InputError` unless the database has the tables of a known schema."""
        expected = f"expected {_SCHEMA_LEAST} or newer, of Home Assistant 2023.4"
        try:
            (version,) = database.execute("SELECT max(schema_version) FROM schema_changes").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_ERROR":  # not that the table is missing
                raise
            version = None
        if not isinstance(version, int) or version < _SCHEMA_LEAST:
            found = "no schema of Home Assistant" if version is None else f"schema {version}"
            raise InputError(f"data {self.place} has {found}; {expected}")

    def _ids(self, database: sqlite3.Connection, table: str, number: str, name: str) -> list[int]:
        """Return the database's numbers of the entities."""
        known = {text: key for key, text in database.execute(f"SELECT {number}, {name} FROM {table}")}  # noqa: S608
        for entity in self.entities.values():
            if entity not in known:
                near = nearest(entity, [text for text in known if isinstance(text, str)])
                raise InputError(f"[data] entities: {entity!r} is not in table {table} of {self.place}{near}")
        return [known[entity] for entity in self.entities.values()]

    def _require_fresh(self, database: sqlite3.Connection, since_s: float) -> None:
        (newest_s,) = database.execute("SELECT max(last_updated_ts) FROM states").fetchone()
        if newest_s is None or newest_s < since_s:
            raise InputError(
                f"data {self.place}: Home Assistant has recorded nothing for {duration(1000 * self.window_s)}; "
                "start it, or raise window_s"
            )

    def _hours(self, database: sqlite3.Connection, since_s: float) -> list[list[object]]:
        ids = self._ids(database, "statistics_meta", "id", "statistic_id")
        found: dict[float, list[object]] = {}
        for place, entity in enumerate(ids):
            query = "SELECT start_ts, mean FROM statistics WHERE metadata_id = ? AND start_ts >= ? LIMIT ?"
            for start_s, mean in database.execute(query, (entity, since_s, _STATES_MAX)):
                found.setdefault(start_s, [None] * len(ids))[place] = mean
        return [row for _, row in sorted(found.items())]


def _last(database: sqlite3.Connection, entity: int) -> object:
    query = "SELECT state FROM states WHERE metadata_id = ? ORDER BY last_updated_ts DESC LIMIT 1"
    found = database.execute(query, (entity,)).fetchone()
    return None if found is None else found[0]


def _mean(database: sqlite3.Connection, entity: int, since_s: float, until_s: float) -> float | None:
    """Return the mean of an entity's states in the window, weighted with how long each held; None without one."""
    before = database.execute(
        "SELECT state FROM states WHERE metadata_id = ? AND last_updated_ts <= ? ORDER BY last_updated_ts DESC LIMIT 1",
        (entity, since_s),
    ).fetchone()
    query = (
        "SELECT last_updated_ts, state FROM states WHERE metadata_id = ? AND last_updated_ts > ? "
        "AND last_updated_ts <= ? ORDER BY last_updated_ts LIMIT ?"
    )
    weighted = lasted_s = 0.0
    at_s, value = since_s, None if before is None else _value(before[0])
    changes = database.execute(query, (entity, since_s, until_s, _STATES_MAX)).fetchall()
    if len(changes) == _STATES_MAX:
        raise InputError(f"[data] window_s: found {_STATES_MAX} or more states of an entity; expected a shorter window")
    for next_s, state in [*changes, (until_s, None)]:
        if value is not None:
            weighted += value * (next_s - at_s)
            lasted_s += next_s - at_s
        at_s, value = next_s, _value(state)
    return weighted / lasted_s if lasted_s else None


def _value(state: object) -> float | None:
    """Return a state's number; None if it has none."""
    number = _SWITCH.get(state, number_of(state))
    return None if math.isnan(number) else number
