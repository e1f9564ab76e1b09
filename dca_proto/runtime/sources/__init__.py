"""Where a client's data come from: a section [data] of its file names one source, by the key of its kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dca_proto.errors import InputError
from dca_proto.runtime.settings import BrokerSettings, convert
from dca_proto.runtime.sources.base import Feed, Source
from dca_proto.runtime.sources.csv_file import CsvSource
from dca_proto.runtime.sources.function import FunctionSource
from dca_proto.runtime.sources.home_assistant import HomeAssistantSource
from dca_proto.runtime.sources.postgres import PostgresSource
from dca_proto.runtime.sources.sqlite import SqliteSource
from dca_proto.runtime.sources.topic import TopicSource
from dca_proto.wording import nearest

__all__ = ["SOURCES", "CsvSource", "Feed", "Source", "read_source"]

SOURCES: dict[str, type[Source]] = {
    kind.key: kind
    for kind in (CsvSource, SqliteSource, PostgresSource, HomeAssistantSource, FunctionSource, TopicSource)
}
"""Each kind of source, by the key of [data] that names it."""


def read_source(table: Mapping[str, object], directory: Path, broker: BrokerSettings) -> Source:
    """Return the checked source of a section [data]. Raises `UsageError`.

    Args:
        table: the section. directory: where its file names begin. broker: the client's own.
    """
    kinds = [key for key in SOURCES if key in table]
    if len(kinds) != 1:
        near = "".join(nearest(key, SOURCES) for key in table if not kinds)
        found = " and ".join(kinds) or "no source"
        raise InputError(f"[data]: found {found}{near}, expected one of {', '.join(SOURCES)}")
    return convert("[data]", table, SOURCES[kinds[0]]).anchored(directory, broker)
