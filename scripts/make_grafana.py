#!/usr/bin/env python
"""Writes the dashboard for Grafana, deploy/grafana/dashboard.json: a panel for each metric, in four rows.

    scripts/make_grafana.py                  writes it
    scripts/make_grafana.py --check          compares only; exit code 1 if it differs

A panel's title, help, unit and query follow from the figure (`dca_proto.results.status`).
`tests/test_monitoring.py` checks it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from dca_proto.results.figure import Figure
from dca_proto.runtime.metrics import metrics_of

PATH = Path(__file__).parent.parent / "deploy" / "grafana" / "dashboard.json"
ROWS = {
    "Needs attention": ("dca_warnings", "dca_connected", "dca_certificate_end_timestamp_seconds"),
    "Rounds": ("dca_open_rounds", "dca_rounds_total", "dca_contributions_total", "dca_unproven_clients_total",
               "dca_declines_total", "dca_phase_seconds", "dca_sessions"),
    "Budget": ("dca_epsilon_left", "dca_epsilon_allowed"),
    "Traffic and machine": (),
}  # fmt: skip
"""The metrics of each row; the last row has all others."""
UNITS = {"s": "s", "bytes": "bytes"}
ACROSS, HEIGHT = 3, 8
SOURCE = {"type": "prometheus", "uid": "${source}"}
OF_FEDERATION = '* on (job, instance) group_left (role, name) dca_actor_info{federation=~"$federation"}'


def queries(name: str, figure: Figure) -> list[tuple[str, str]]:
    """Return PromQL queries of a metric, each with its legend. All say whose the figure is."""
    assert figure.metric is not None, "a figure that is a metric"
    labels = figure.metric.labels
    by = ", ".join(("job", "instance", *labels))
    who = " ".join(("{{role}} {{name}}", *(f"{{{{{label}}}}}" for label in labels)))
    if figure.metric.kind == "counter":
        return [(f"sum by ({by}) (increase({name}[$__rate_interval])) {OF_FEDERATION}", who)]
    if figure.metric.kind == "histogram":
        of = f"sum by ({by}, le) (rate({name}_bucket[$__rate_interval]))"
        return [
            (f"histogram_quantile({part}, {of}) {OF_FEDERATION}", f"{who} {words}")
            for part, words in ((0.5, "median"), (0.95, "95 %"))
        ]
    if "timestamp" in name:
        return [(f"({name} - time()) {OF_FEDERATION}", who)]
    return [(f"{name} {OF_FEDERATION}", who)]


def panel(number: int, name: str, figure: Figure, x: int, y: int) -> dict[str, Any]:
    """Return a panel of a metric at a place."""
    is_time = "timestamp" in name
    title = figure.title[:1].upper() + figure.title[1:] + (" in" if is_time and "end" in name else "")
    return {
        "id": number,
        "type": "timeseries",
        "title": title + (", per interval" if figure.metric is not None and figure.metric.kind == "counter" else ""),
        "description": f"{figure.help} ({name})",
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": 24 // ACROSS, "h": HEIGHT},
        "fieldConfig": {
            "defaults": {"unit": "s" if is_time else UNITS.get(figure.unit, "short"), "min": None if is_time else 0},
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": query, "legendFormat": legend, "datasource": SOURCE}
            for place, (query, legend) in enumerate(queries(name, figure))
        ],
    }


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    known = metrics_of()
    rows = {title: [*names] for title, names in ROWS.items()}
    placed = {name for names in rows.values() for name in names}
    rows[[*rows][-1]] += [name for name in known if name not in placed]
    panels: list[dict[str, Any]] = []
    y = 0
    for title, names in rows.items():
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})  # fmt: skip
        y += 1
        for place, name in enumerate(names):
            at = 24 // ACROSS * (place % ACROSS), y + HEIGHT * (place // ACROSS)
            panels.append(panel(len(panels) + 1, name, known[name], *at))
        y += HEIGHT * -(-len(names) // ACROSS)
    return {
        "title": "DCA federation",
        "uid": "dca-federation",
        "tags": ["dca"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-24h", "to": "now"},
        "timezone": "utc",
        "templating": {"list": [
            {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
            {"name": "federation", "type": "query", "label": "Federation", "datasource": SOURCE, "refresh": 2,
             "query": "label_values(dca_actor_info, federation)", "includeAll": True, "multi": True, "current": {}},
        ]},
        "annotations": {"list": []},
        "panels": panels,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    text = json.dumps(dashboard(), indent=1) + "\n"
    if parser.parse_args().check:
        return int(not PATH.exists() or PATH.read_text(encoding="utf-8") != text)
    PATH.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
