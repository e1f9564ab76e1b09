"""`dca account --every day --for 1y`: one budget for all rounds of a period, of each kind."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dca_proto.cli import main
from dca_proto.privacy.accounting import mu_of, mu_of_pure
from dca_proto.privacy.budget import Budget
from dca_proto.privacy.cost import PrivacyCost, total

TERMS = ["--epsilon", "2", "--delta", "1e-5", "--statistic", "mean", "--bounds", "t=0:50"]
ALLOWED = Budget(2.0, 1e-5)


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)

    def call(options: str) -> Any:
        assert main(["account", *TERMS, *options.split(), "--json", "-"]) == 0
        return json.loads(capsys.readouterr().out)

    return call


@pytest.mark.parametrize(
    ("every", "period", "times"),
    [("hour", "1y", 8760), ("day", "1y", 365), ("week", "1y", 53), ("day", "26w", 182), ("week", "8d", 2)],
)
def test_equal_rounds_of_a_period_spend_the_budget_together(answer: Any, every: str, period: str, times: int) -> None:
    found = answer(f"--clients 500 --tolerate 50 --every {every} --for {period}")
    (planned,) = found["rounds"]
    assert (found["times"], found["every"]) == (times, every)
    assert found["mu"] == pytest.approx(mu_of(2, 1e-5), rel=1e-9)
    assert planned["mu"] == pytest.approx(mu_of(2, 1e-5) / math.sqrt(times), rel=1e-9)
    assert total([PrivacyCost.of_mu(planned["mu"])] * times).within(2, 1e-5)
    once = answer("--clients 500 --tolerate 50")["rounds"][0]
    assert planned["sigma_sum"] == pytest.approx(once["sigma_sum"] * math.sqrt(times), rel=1e-6)


def test_a_node_release_costs_a_row_and_its_mean_is_over_all_rows(answer: Any) -> None:
    found = answer("--clients 5 --kind node-release --rows-max 200 --every week --for 1y")
    (planned,) = found["rounds"]
    mu = mu_of(2, 1e-5) / math.sqrt(53)
    sd = 2 / mu * math.sqrt(5)  # a row's value is within ±1, and each node adds all the noise
    assert (found["computes"], found["n_min"], planned["relation"]) == (0, 0, "replace-one-row")
    assert planned["sigma_sum"] == pytest.approx(sd, rel=1e-6)
    assert planned["noise_std"][0] == pytest.approx(25 * sd / 1000, rel=1e-6)


@pytest.mark.parametrize(("times", "by_mu"), [(8, False), (52, True)])
def test_reports_of_delta_0_get_the_larger_of_two_epsilons(answer: Any, times: int, by_mu: bool) -> None:
    report = "--clients 9000 --kind ldp-report --mechanism grid-laplace --rows-max 1"
    found = answer(f"{report} --every week --for {times}w")
    (planned,) = found["rounds"]
    assert (planned["epsilon"] > 2 / times * (1 + 1e-9)) == by_mu
    assert (planned["delta"], found["mechanism"]) == (0, "grid-laplace")
    assert total([PrivacyCost.of_pure(planned["epsilon"])] * times).within(2, 1e-5)
    assert found["epsilon_spent"] == pytest.approx(2, rel=1e-9)
    scale = 2 * math.sqrt(2) / planned["epsilon"]  # standard deviation of Laplace noise with sensitivity 2
    assert planned["sigma_sum"] == pytest.approx(scale * math.sqrt(9000), rel=1e-3)


def test_other_releases_of_each_day_are_composed_with_all_rounds(answer: Any) -> None:
    found = answer("--clients 500 --tolerate 50 --every day --for 90d --also laplace:0.01*90")
    assert len(found["also"]) == 90
    assert 2 < found["epsilon_with_also"] < found["epsilon_charged_with_also"] < 2.9
    charged = total([PrivacyCost.of_mu(found["mu"]), *[PrivacyCost.of_pure(0.01)] * 90])
    assert found["epsilon_charged_with_also"] == pytest.approx(charged.epsilon(1e-5))


@pytest.mark.parametrize("times", [1, 2, 24, 26, 365])
@pytest.mark.parametrize("alone", [True, False])
def test_repeated_rounds_never_exceed_their_part(times: int, alone: bool) -> None:
    for part in (1.0, 0.25):
        for pure in (True, False):
            cost = ALLOWED.repeated(part, times, pure=pure, alone=alone)
            one = PrivacyCost.of_pure(cost.epsilon) if pure else PrivacyCost.of_mu(cost.mu)
            assert total([one] * times).within(2, 1e-5)
            if not alone:
                assert times * one.mu**2 <= part * ALLOWED.mu**2
    assert ALLOWED.repeated(1, 1, pure=True) == type(cost)(mu_of_pure(2.0), 2.0, 0.0)


@pytest.mark.parametrize("times", [(1, 365), (4, 672), (8, 8), (365, 365), (1, 1)])
@pytest.mark.parametrize("pure", [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("parts", [(0.5, 0.5), (0.95, 0.05), (0.05, 0.95)])
def test_series_of_rounds_together_never_exceed_the_budget(
    times: tuple[int, int], pure: tuple[bool, bool], parts: tuple[float, float]
) -> None:
    parts = parts[0] * (1 - 1e-8), parts[1] * (1 - 1e-8)
    costs = ALLOWED.repeated_all(parts, times, pure)
    ones = [PrivacyCost.of_pure(cost.epsilon) if cost.delta == 0 else PrivacyCost.of_mu(cost.mu) for cost in costs]
    spent = total(one for one, number in zip(ones, times, strict=True) for _ in range(number))
    assert spent.within(2, 1e-5)
    assert spent.epsilon(1e-5) == pytest.approx(2, rel=1e-6)
