"""Columns of texts of sources that are no tables: a function's rows, and states of Home Assistant."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from recorder import Recorder
from structlog.testing import capture_logs

from dca_proto.errors import UsageError
from dca_proto.runtime.settings import BrokerSettings
from dca_proto.runtime.sources import Feed, read_source

NAN = float("nan")


def opened(table: dict[str, Any], folder: Path) -> Feed:
    return read_source(table, folder, BrokerSettings(url="mqtt://127.0.0.1")).open()


def test_a_function_may_return_texts_with_listed_categories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(read=lambda: [["drug", np.inf], ["aspirin", 2], [None, np.int64(3)]])
    monkeypatch.setitem(sys.modules, "own_rows", module)
    given = {"python": "own_rows:read", "columns": ["arm", "age"], "categories": {"arm": ["placebo", "drug"]}}
    with capture_logs() as logs:
        feed = opened(given, tmp_path)
        feed.refresh()
    assert feed.columns == ("arm", "arm=placebo", "arm=drug", "arm in {placebo, drug}", "age")
    np.testing.assert_array_equal(feed.rows(("arm", "arm=drug", "age")), [[1, 1, NAN], [NAN, NAN, 2], [NAN, NAN, 3]])
    assert [entry["fields"] for entry in logs if "fields" in entry] == [{"arm": 1}], "once, as long as it is the same"
    module.read = list
    feed.refresh()
    assert feed.rows(("arm", "age")).shape == (0, 2)
    with pytest.raises(UsageError, match="no column 'sex', for which categories are listed"):
        opened({**given, "categories": {"sex": ["f", "m"]}}, tmp_path)


def test_a_state_may_be_a_text_with_listed_categories(tmp_path: Path) -> None:
    recorder, now_s = Recorder(tmp_path / "ha.db"), time.time()
    recorder.state("sensor.kitchen", "heating", now_s - 60)
    recorder.state("sensor.hall", "15", now_s - 60)
    entities = {"kitchen": "sensor.kitchen", "hall": "sensor.hall"}
    given = {"home_assistant": "ha.db", "entities": entities, "categories": {"kitchen": ["off", "heating"]}}
    feed = opened(given, tmp_path)
    np.testing.assert_array_equal(feed.rows(("kitchen", "kitchen=heating", "hall")), [[1, 1, 15]])
    recorder.state("sensor.kitchen", "unavailable", now_s - 30)
    with capture_logs() as logs:
        feed.refresh()
    np.testing.assert_array_equal(feed.rows(("kitchen", "hall")), [[NAN, 15]])
    assert not logs, "an entity that is away has no odd value"
    with pytest.raises(UsageError, match="texts have no mean"):
        opened({**given, "take": "mean"}, tmp_path)
