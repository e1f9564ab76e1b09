"""deploy/: Prometheus and Grafana ask for metrics that exist, and each alert fires when it should."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dca_proto.runtime.metrics import ABOUT, PREFIX, metrics_of

ROOT = Path(__file__).parents[1]
PROMETHEUS, DASHBOARD = ROOT / "deploy" / "prometheus", ROOT / "deploy" / "grafana" / "dashboard.json"
ALERTS = (PROMETHEUS / "alerts.yml").read_text(encoding="utf-8")
KNOWN = {f"{PREFIX}{ABOUT}_info"} | {
    f"{name}{ending}"
    for name, figure in metrics_of().items()
    for ending in (("_bucket", "_sum", "_count") if figure.metric and figure.metric.kind == "histogram" else ("",))
}
VARIABLES = {"$__rate_interval": "5m", "$federation": ".*"}


def queries() -> list[str]:
    """All queries of the dashboard, as Grafana sends them."""
    found = [
        target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel.get("targets", [])
    ]
    for name, value in VARIABLES.items():
        found = [query.replace(name, value) for query in found]
    return found


@pytest.fixture(scope="module")
def promtool() -> str:
    """Skips, visibly, where it is missing; fails where it is required."""
    program = shutil.which("promtool")
    if program is None:
        missing = pytest.fail if os.environ.get("REQUIRE_PROMTOOL") == "1" else pytest.skip
        missing("promtool is not installed (Debian: apt install prometheus)")
    return program


def run(*arguments: str | Path) -> None:
    done = subprocess.run(arguments, cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_is_made_from_the_metrics() -> None:
    checked = subprocess.run([sys.executable, "scripts/make_grafana.py", "--check"], cwd=ROOT, check=False)
    assert checked.returncode == 0, "run scripts/make_grafana.py"
    text = "\n".join(queries())
    assert [name for name in metrics_of() if name not in text] == []


@pytest.mark.parametrize("path", [PROMETHEUS / "alerts.yml", PROMETHEUS / "alerts_test.yml", DASHBOARD], ids=str)
def test_every_metric_that_is_named_exists(path: Path) -> None:
    named = set(re.findall(rf"\b{PREFIX}[a-z_]+", path.read_text(encoding="utf-8")))
    assert len(named) > 5
    assert named - KNOWN - set(metrics_of()) == set()


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    alerts = re.findall(r"- alert: (\w+)", ALERTS)
    cases = re.findall(r"alertname: (\w+),.*exp_alerts: \[(.?)", (PROMETHEUS / "alerts_test.yml").read_text())
    assert len(alerts) >= 10
    assert ALERTS.count("summary:") == ALERTS.count("remedy:") == len(alerts)
    assert {(name, fires == "{") for name, fires in cases} == {
        (name, fires) for name in alerts for fires in (True, False)
    }


@pytest.mark.long
def test_prometheus_accepts_the_files_and_the_alerts_fire(promtool: str, tmp_path: Path) -> None:
    run(promtool, "check", "config", "prometheus.yml")
    run(promtool, "test", "rules", "alerts_test.yml")
    rules = [{"record": f"query:{place}", "expr": query} for place, query in enumerate(queries())]
    asked = tmp_path / "queries.yml"
    asked.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML
    run(promtool, "check", "rules", asked)
    asked.write_text(asked.read_text().replace("sum by (", "sum by by ("))
    with pytest.raises(AssertionError, match="parse error"):
        run(promtool, "check", "rules", asked)
