"""Point 7 of the hardening: impossible numbers and names, in files, options and headers, are one-line errors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dca_proto.cli import broker, main
from dca_proto.errors import UsageError
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian
from dca_proto.protocol.federation import Federation, Member
from dca_proto.protocol.ledger import Ledger
from dca_proto.protocol.params import Limits
from dca_proto.protocol.policy import BudgetLimit, Floors, Policy
from dca_proto.runtime.request import RoundSettings, open_round
from dca_proto.runtime.settings import BrokerSettings, convert
from dca_proto.runtime.table import read_csv
from dca_proto.statistics import resolve
from dca_proto.testing import TestFederation
from inference.bounds import parse_bounds
from inference.errors import DataError

NUMBERS = (
    math.nan, math.inf, -math.inf, 1e308, -1e308, 1e-320, 5e-324, -1.0, 0.0, -1, 0, 2**31, 2**63, 10**30, -(10**30),
)  # fmt: skip
NOW_MS = 1_700_000_000_000
CAST = TestFederation(4, 2)
ROUND = {
    "statistic": "mean", "columns": ["x"], "bounds": {"x": [0, 10]}, "epsilon": 1.0, "delta": 1e-6, "tolerate": 1,
    "clients": 20,
}  # fmt: skip
REPORT = {
    "kind": "ldp-report", "mechanism": "grid-laplace", "statistic": "mean", "columns": ["x"], "bounds": {"x": [0, 10]},
    "epsilon": 1.0,
}  # fmt: skip


def numeric(kind: type[msgspec.Struct]) -> list[str]:
    plain = {field.name: getattr(field.type, "__origin__", field.type) for field in msgspec.structs.fields(kind)}
    return [name for name, declared in plain.items() if declared in (int, float)]


def use_policy(policy: Policy) -> None:
    use_allowance(policy.budget_limit)


def use_allowance(budget_limit: BudgetLimit) -> None:
    assert budget_limit.since_ms(NOW_MS) < NOW_MS, "a charge of the last moment counts"
    assert budget_limit.left(Ledger(), NOW_MS) >= 0
    refusal = budget_limit.check(PrivacyCost.of(100.0, 1e-6), Ledger(), NOW_MS)
    assert refusal is None or refusal.reason == "budget"


def use_round(settings: RoundSettings) -> None:
    request = open_round(settings, CAST.federation)
    _, validated = request.draft(DistributedDiscreteGaussian(), Limits())
    assert 0 < validated.noise_std < math.inf
    assert min(request.collect_ms, request.commit_ms) > 0


def line_of(work: Callable[[], object]) -> str:
    """The line by which something is refused; empty if it is not."""
    try:
        work()
    except UsageError as error:
        return str(error)
    return ""


KINDS: dict[str, tuple[type[msgspec.Struct], dict[str, Any], Any]] = {
    "policy": (Policy, {}, use_policy),
    "floors": (Floors, {}, lambda floors: None),
    "account": (BudgetLimit, {}, use_allowance),
    "broker": (BrokerSettings, {"url": "mqtt://localhost"}, lambda settings: settings.port),
    "round": (RoundSettings, ROUND, use_round),
    "report": (RoundSettings, REPORT, use_round),
}


@pytest.mark.parametrize("name", KINDS)
def test_hardening_7_no_number_of_a_file_is_more_than_a_line(name: str) -> None:
    """Each key with each number: it is refused in one line that names the key, or it can be used."""
    kind, plain, use = KINDS[name]
    refused = 0
    for key, number in itertools.product(numeric(kind), NUMBERS):
        line = line_of(lambda key=key, number=number: use(convert(f"[{name}]", {**plain, key: number}, kind)))
        assert "\n" not in line, (key, number)
        refused += bool(line)
    assert refused > 0.3 * len(numeric(kind)) * len(NUMBERS)


@pytest.mark.parametrize("days", [1e308, 1e300, math.inf, math.nan, 1e-320, 0.0, -1.0])
def test_hardening_7_a_period_that_is_none_is_refused(days: float) -> None:
    """1e308 raised an OverflowError with the first announcement; 1e-320 counted no charge at all."""
    for make in (lambda: BudgetLimit(period_days=days), lambda: Policy(period_days=days)):
        with pytest.raises(UsageError, match=r"period_days is .*; give a number of days from 0.01 to 36600, such as"):
            make()


STRANGE = [(0, 1e-320), (0, 5e-324), (1, 1), (-1e308, 1e308), (0, 1e308), (1e300, 1.1e300), (0, math.nan)]


@pytest.mark.parametrize("ends", STRANGE)
def test_hardening_7_meaningless_bounds_are_refused_before_anything_is_charged(ends: tuple[float, float]) -> None:
    """Results in such units underflow to 0 or overflow: the round would spend the budget for nothing."""
    settings = convert("round:", {**ROUND, "bounds": {"x": ends}}, RoundSettings)
    with pytest.raises(UsageError, match=r"bounds of 'x': found .*, expected finite LO < HI, 2e-50 or more apart"):
        open_round(settings, CAST.federation)
    with pytest.raises(DataError, match="expected finite LO < HI, 2e-50 or more apart, within"):
        parse_bounds(f"x={ends[0]}:{ends[1]}")
    centre, scale = (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / 2
    with pytest.raises(UsageError, match=r"(centre|scale) of column 'x' is .*; give a finite number"):
        resolve("mean", {"columns": ["x"], "centre": [centre], "scale": [scale], "bound": [1.0]})


@pytest.mark.parametrize("ends", [(0, 3e-50), (-1e50, 1e50), (1e49, 2e49), (5.0, 5.0000001)])
def test_hardening_7_bounds_at_the_limits_are_good(ends: tuple[float, float]) -> None:
    use_round(convert("round:", {**ROUND, "bounds": {"x": ends}}, RoundSettings))
    half = parse_bounds(f"x={ends[0]}:{ends[1]}")["x"].half_width
    assert 0 < half**4 < math.inf


@pytest.mark.parametrize("option", ["computes", "trainers", "clients"])
@pytest.mark.parametrize("count", ["99999999999", "10001", "-1"])
def test_hardening_7_a_trial_of_too_many_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, count: str
) -> None:
    """It made keys until the memory was full."""
    assert main(["federation", "init", str(tmp_path / "fed"), "--computes", "2", f"--{option}={count}"]) == 2
    assert f"--{option} {count}: expected 0 to " in capsys.readouterr().err
    assert not (tmp_path / "fed").exists()


@pytest.mark.parametrize(
    "command",
    [("swarm", "--clients"), ("swarm", "--data-nodes"), ("audit", "--clients")],
)
def test_hardening_7_an_emulation_of_too_many_is_refused_at_once(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    """A swarm dealt rows, and a coalition made keys, until the memory was full."""
    assert main([*command, "99999999999"]) == 2
    assert f"{command[-1][2:]} is 99999999999; give a number from 0 to 10000000" in capsys.readouterr().err


KEYS = [bytes([number]) * 32 for number in range(3)]
NAMES = ["../../../x", "/etc/x", "..", ".hidden", "-rf", "a/b", "a\\b", "", "x" * 65, "a\nb", "a\x1b[31m", "a\0"]


@pytest.mark.parametrize("name", NAMES)
def test_hardening_7_a_members_name_is_no_path(name: str) -> None:
    """`dca broker` wrote its password file outside of the folder."""
    with pytest.raises(UsageError, match=r"a member is named .*; use up to 64 letters, digits, spaces") as caught:
        Federation("demo", KEYS[0], (Member(name, KEYS[1]),), ())
    assert caught.value.args[0].isprintable()


@pytest.mark.parametrize("name", ["compute-1", "St. Mary's".replace("'", ""), "Kreiskrankenhaus Süd", "a" * 64, "7"])
def test_hardening_7_names_for_people_are_good(name: str) -> None:
    assert Federation("demo", KEYS[0], (Member(name, KEYS[1]),), ()).computes[0].name == name


@pytest.mark.parametrize("stem", ["compute-1", "Compute-1", "trainer"])
def test_hardening_7_no_two_members_share_a_password(tmp_path: Path, stem: str) -> None:
    """A certificate whose file is named as another member got that member's password file."""
    demo = tmp_path / "demo"
    assert main(["federation", "init", str(demo), "--computes", "2", "--clients", "1"]) == 0
    (demo / "client-1.cert").rename(demo / f"{stem}.cert")
    with pytest.raises(UsageError, match=rf"share .*\.password: give the certificate {stem}.cert another name"):
        broker._access(demo / "federation.toml", tmp_path / "passwords", None)
    assert not (tmp_path / "passwords").exists()


@pytest.mark.parametrize(
    "header",
    ["nan,inf", "1e308,-1", "x,x", ",x", "\x00,x", "", '"x', "x" * 1000 + ",y", "\x1b[31m,y", "1e-320,0x1"],
)
def test_hardening_7_a_header_of_any_kind_is_a_line_or_names(tmp_path: Path, header: str) -> None:
    path = tmp_path / "data.csv"
    path.write_text(f"{header}\n1,2\n")
    line = line_of(lambda: read_csv(path))
    if header in ("x" * 1000 + ",y", "1e-320,0x1"):
        assert line == "", "one of the names is no number"
    else:
        assert str(path) in line
        assert line.isprintable()


@pytest.mark.parametrize("cell", ["1e309", "-1e309", "nan", "inf", "1_000", "0x10", "١", "", "1e-400", "9" * 5000])
def test_hardening_7_a_cell_of_any_kind_is_a_number_or_missing(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "data.csv"
    path.write_text(f"x,y\n{cell},2\n")
    values = read_csv(path).rows(("x", "y"))
    assert values.shape == (1, 2)
    assert np.isnan(values[0, 0]) or abs(values[0, 0]) <= 1
    assert values[0, 1] == 2
