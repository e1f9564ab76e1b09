"""Jobs of the inference at a live trainer: an estimator over its rounds, an iterative job that is killed.

Real actors over a broker in memory, as in `test_learning`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from memory_swarm import SETTINGS, Killed, LoadedTrainer, Power, PoweredJournal, Swarm
from virtual_time import run

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.jobs.journal import Journal, Summed
from dca_proto.jobs.runner import learn
from dca_proto.jobs.sync import TrainerRounds
from dca_proto.testing import NoNoise, TestFederation
from inference.bounds import Interval
from inference.estimators import PrivateBoundedRegression
from inference.jobs import find
from inference.jobs.base import Conditions
from inference.problem import Schema

CLIENTS, EPOCHS = 6, 4
ROUNDS = 2 + EPOCHS
Requests = list[RoundRequest]


def swarm_of(target: Callable[[np.ndarray], np.ndarray], **mechanism: Any) -> Swarm:
    """A client for each of some rows (x, y)."""
    x = np.linspace(-1, 1, CLIENTS)
    rows = [np.array([row]) for row in np.column_stack([x, target(x)])]
    return Swarm(actors=TestFederation(CLIENTS, 2, columns=("x", "y"), rows=rows, **mechanism))


# An estimator over a running trainer


def test_an_estimator_learns_over_a_running_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = swarm_of(lambda x: 2 * x)
    monkeypatch.setattr("dca_proto.jobs.sync.device.load", lambda *given, **roles: LoadedTrainer(swarm))
    schema = Schema(("x",), "y", {"x": Interval(-1, 1), "y": Interval(-2, 2)})
    with TrainerRounds(tmp_path / "trainer.toml", swarm.terms()) as rounds:
        fitted = PrivateBoundedRegression(schema=schema).fit(rounds)
    assert fitted.private_
    assert fitted.epsilon_ == pytest.approx(4.0, rel=1e-6)
    assert fitted.delta_ == 1e-6
    assert fitted.repair_ == "noise-aware"
    assert np.isfinite([*fitted.coef_, *fitted.coef_sd_, fitted.intercept_]).all()
    assert fitted.feature_names_in_.tolist() == ["x"]
    assert swarm.charges() == [1] * CLIENTS


# An iterative job that is killed


def illness(x: np.ndarray) -> np.ndarray:
    return (x > 0).astype(float)


def logistic(requests: Requests) -> Generator[RoundRequest, NoisyAggregate, Any]:
    """The job as `dca learn` makes it, from the same seed in each process; what it asks is noted."""
    schema = Schema(("x",), "y", {"x": Interval(-1, 1), "y": Interval(0, 1)})
    job = find("logistic")
    conditions = Conditions(clients=CLIENTS, tolerate=0, mu=1.0, rng=np.random.default_rng(5))
    made = job.make(schema, job.settings(epochs=EPOCHS), conditions)
    request = next(made)
    try:
        while True:
            requests.append(request)
            request = made.send((yield request))
    except StopIteration as end:
        return end.value


def play(swarm: Swarm, path: Path, power: Power) -> tuple[Any, list[Requests]]:
    """The job's result, however often its process is killed, and what each process requested."""
    processes: list[Requests] = []

    async def process() -> Any:
        processes.append([])
        with contextlib.ExitStack() as stack:
            journal = stack.enter_context(PoweredJournal(path, SETTINGS, power))
            async with swarm.trainer(power) as trainer:
                return await learn(logistic(processes[-1]), trainer, swarm.terms(), journal)

    async def story() -> Any:
        async with swarm.up():
            try:
                return await process()
            except Killed:
                return await process()

    return run(story()), processes


@pytest.mark.long
def test_killed_variational_inference_gives_the_same_result(tmp_path: Path) -> None:
    """The same sums give the same posterior to the last bit, and each round takes place and is paid for once."""
    power = Power()
    whole, (requests,) = play(swarm_of(illness, mechanism=NoNoise()), tmp_path / "whole.journal", power)
    assert [one.statistic for one in requests] == ["phases", "regression"] + ["gradient"] * EPOCHS
    assert power.passed > 10 * ROUNDS
    for point in range(3, power.passed, 11):
        swarm, path = swarm_of(illness, mechanism=NoNoise()), tmp_path / f"{point}.journal"
        result, (first, second) = play(swarm, path, Power(point))
        assert first == requests[: len(first)]
        assert second == requests
        np.testing.assert_array_equal(result.coefficients, whole.coefficients)
        np.testing.assert_array_equal(result.coefficient_sd, whole.coefficient_sd)
        assert swarm.charges() == [ROUNDS] * CLIENTS
        with Journal(path, SETTINGS) as journal:
            ends = [end for number in range(1, ROUNDS + 1) for _, end in journal.recall(number).attempts]
        assert [type(end) for end in ends] == [Summed] * ROUNDS
        assert sum(request.budget_share for request in second) <= 1 + 1e-9
