"""A database as Home Assistant's recorder keeps it: the tables and columns that a source reads, of schema 50."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

TABLES = """
CREATE TABLE states_meta (metadata_id INTEGER PRIMARY KEY, entity_id VARCHAR(255));
CREATE UNIQUE INDEX ix_states_meta_entity_id ON states_meta (entity_id);
CREATE TABLE states (
    state_id INTEGER PRIMARY KEY, entity_id CHAR(0), state VARCHAR(255), attributes CHAR(0), last_changed CHAR(0),
    last_changed_ts FLOAT, last_reported_ts FLOAT, last_updated CHAR(0), last_updated_ts FLOAT, old_state_id INTEGER,
    attributes_id INTEGER, origin_idx SMALLINT, metadata_id INTEGER
);
CREATE INDEX ix_states_metadata_id_last_updated_ts ON states (metadata_id, last_updated_ts);
CREATE INDEX ix_states_last_updated_ts ON states (last_updated_ts);
CREATE TABLE statistics_meta (
    id INTEGER PRIMARY KEY, statistic_id VARCHAR(255), source VARCHAR(32), unit_of_measurement VARCHAR(255),
    has_mean BOOLEAN, has_sum BOOLEAN, name VARCHAR(255), mean_type INTEGER
);
CREATE TABLE statistics (
    id INTEGER PRIMARY KEY, created_ts FLOAT, metadata_id INTEGER, start_ts FLOAT, mean FLOAT, min FLOAT, max FLOAT,
    last_reset_ts FLOAT, state FLOAT, sum FLOAT, mean_weight FLOAT
);
CREATE UNIQUE INDEX ix_statistics_statistic_id_start_ts ON statistics (metadata_id, start_ts);
CREATE TABLE schema_changes (change_id INTEGER PRIMARY KEY, schema_version INTEGER, changed DATETIME);
INSERT INTO schema_changes (schema_version) VALUES (50);
"""


class Recorder:
    """A database in a file, with write-ahead log as Home Assistant has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.executescript(TABLES)

    def state(self, entity: str, state: str, at_s: float) -> None:
        """Record a state that an entity has from a moment on."""
        self._insert("states_meta", "entity_id", entity, "states (metadata_id, state, last_updated_ts)", (state, at_s))

    def hour(self, entity: str, mean: float, start_s: float) -> None:
        """Record the mean of an hour."""
        self._insert(
            "statistics_meta", "statistic_id", entity, "statistics (metadata_id, mean, start_ts)", (mean, start_s)
        )

    def _insert(self, meta: str, name: str, entity: str, into: str, values: tuple[object, ...]) -> None:
        with closing(sqlite3.connect(self.path)) as database, database:
            find = f"SELECT rowid FROM {meta} WHERE {name} = ?"
            if not database.execute(find, (entity,)).fetchone():
                database.execute(f"INSERT INTO {meta} ({name}) VALUES (?)", (entity,))
            (number,) = database.execute(find, (entity,)).fetchone()
            database.execute(f"INSERT INTO {into} VALUES (?, ?, ?)", (number, *values))
