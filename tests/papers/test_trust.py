"""Who adds the noise: only the noise differs between the four, errors are what new rows would have, and checks bite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from inference.problem import stream
from papers.ldp2021 import trust
from papers.ldp2021.trust import AWARE, DCA, DCA_DROPS, LOCAL, NAIVE, SIMULATED, TRUST, TRUSTED, Cell, Trust
from papers.runner import Check

CLIENTS, REPEATS, DATA = 200, 60, next(iter(SIMULATED))
EPSILONS = (0.1, 10.0)


def test_only_the_noise_differs() -> None:
    """Its variance in the sum: n times one report's, N/(N - 1) and (N - T)/(N - T - 1) times a trusted one's."""
    rows = trust.simulated(CLIENTS, np.random.default_rng(1))
    found = {one: trust.release(rows, one, 2.0, np.random.default_rng(2)) for one in TRUST}
    assert len({(one.statistic, str(one.parameters), one.epsilon, one.delta) for one in found.values()}) == 1
    once = found[TRUSTED].noise_variance
    assert {name: one.contributors for name, one in found.items()} == {**dict.fromkeys(TRUST, 200), DCA_DROPS: 180}
    for name, times in ((LOCAL, 200), (DCA, 200 / 199), (DCA_DROPS, 180 / 179)):
        assert found[name].noise_variance / once == pytest.approx(times, rel=1e-3)
    assert (found[LOCAL].reports is None, found[DCA].reports is None) == (False, True)


def test_rows_are_the_same_for_all_and_noise_is_each_cells_own() -> None:
    experiment = Trust(seed=3)
    first, again = (experiment.rows_of(DATA, 4) for _ in range(2))
    assert np.array_equal(first.table, again.table)
    assert not np.array_equal(first.table, experiment.rows_of(DATA, 5).table)
    cells = [one for one in experiment.cells() if one.first == 0 and one.data == DATA]
    drawn = {stream(experiment.seed, f"local/trust/{cell}/0").integers(2**60) for cell in cells}
    assert len(drawn) == len(cells) == len(TRUST) * len(trust.EPSILONS)


def test_an_error_is_that_of_new_rows() -> None:
    """Against a million of them: within 5 standard errors of the mean square, about 0.7 % (false alarm 6e-7)."""
    rng = np.random.default_rng(5)
    rows, theta = trust.simulated(10, rng), rng.normal(size=trust.FEATURES + 1)
    new = trust.simulated(10**6, np.random.default_rng(6))
    assert new.truth is not None
    assert rows.truth is not None
    y = new.table[:, -1] + rows.truth[0] - new.truth[0] + new.table[:, :-1] @ (rows.truth - new.truth)[1:]
    off = (y - theta[0] - new.table[:, :-1] @ theta[1:]) ** 2
    assert abs(trust._error(rows, theta) ** 2 - off.mean()) < 5 * off.std() / 1000


# --- the checks -------------------------------------------------------------------------------------------------------


def found(change: Callable[[str, float, str, dict[str, Any]], None] = lambda *given: None) -> list[Check]:
    """The checks of results that are as they should be, but for a change of each cell's fit."""
    experiment = Trust(repeats=REPEATS, epsilons=EPSILONS, kinds=(DATA,))
    cells = [Cell(DATA, one, epsilon, 0, REPEATS) for one in TRUST for epsilon in EPSILONS]
    results = []
    for cell in cells:
        rng = stream(1, str(cell))
        result: dict[str, Any] = {"without privacy": [0.2] * REPEATS, "without a model": [0.5] * REPEATS}
        for fit in (AWARE, NAIVE):
            of = {"error": 0.3 if cell.trust == LOCAL else 0.21, "level": 1.0 if fit == AWARE else 0.4, "r_hat": 1.0}
            change(cell.trust, cell.epsilon, fit, of)
            result[fit] = [
                {
                    "error": of["error"] + 0.01 * rng.normal(),
                    "covered": [float(rng.binomial(5, of["level"] * level) / 5) for level in trust.LEVELS],
                    "r_hat": of["r_hat"],
                }
                for _ in range(REPEATS)
            ]
        results.append(result)
    made = experiment.gather(cells, results)
    assert experiment.pays_from(made, DATA, TRUSTED, AWARE) == EPSILONS[0]
    assert experiment.pays_from(made, DATA, LOCAL, AWARE) is None
    assert len(list(experiment.tables(made))) == 3
    return list(experiment.checks(made))


def test_results_as_they_should_be_pass_every_check() -> None:
    assert [one.name for one in found() if not one.holds] == []


def change(name: str, value: float, *, of: str, fit: str, at: float = EPSILONS[0]) -> Callable[..., None]:
    def changed(who: str, epsilon: float, model: str, cell: dict[str, Any]) -> None:
        if (who, epsilon, model) == (of, at, fit):
            cell[name] = value

    return changed


@pytest.mark.parametrize(("planted", "check"), [
    (change("level", 0.8, of=DCA, fit=AWARE, at=10.0), "noise-aware coverage"),
    (change("level", 1.0, of=TRUSTED, fit=NAIVE), "noise-naive is overconfident"),
    (change("error", 0.4, of=DCA, fit=AWARE), f"{DCA} and {LOCAL} reports, {DATA}"),
    (change("error", 0.24, of=DCA, fit=AWARE), "DCA, T = 0 and the trusted aggregator"),
    (change("r_hat", 1.2, of=LOCAL, fit=AWARE), "R-hat"),
])  # fmt: skip
def test_each_check_fails_if_its_condition_is_violated(planted: Callable[..., None], check: str) -> None:
    assert check in [one.name for one in found(planted) if not one.holds]
