"""Invented rows on which every learning job is tried: tests, scripts and tables loop over the jobs' examples.

A job declares two things (`inference.jobs.base.LearningJob`):

    examples    the kind of its target (`problem`), and settings by which it is fast
    clean       the designs on which nothing is wrong (`DESIGNS`), so that a warning about them is a false alarm
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

from dca_proto.protocol.wire.kinds import Kind
from inference.bounds import Interval
from inference.problem import Problem, Schema

NUMBER, CLASS, COUNT, PAIRS, TIME = "number", "class", "count", "pairs", "time"
GRADE, KIND = "grade", "kind"
TARGETS = NUMBER, CLASS, COUNT, PAIRS, TIME, GRADE, KIND
"""Kinds of targets: with outliers or not, of two classes, 0 to 4, two heaps of features without a target, durations,
grades 1 to 4 in an order, and kinds 0 to 2 without one."""
QUICK_DRAWS = {"chains": 2, "warmup": 60, "draws": 60, "require_mixed": False}
"""Settings of a job that samples, far too few for a real result."""
SHARE = 0.1  # of the rare category
NORMAL, SKEWED, BINARY = "normal", "skewed", "rare binary"
Rng = np.random.Generator
Design = Callable[[Rng, int], Problem]


class Example(NamedTuple):
    """A quick run of a job.

    Attributes:
        target: one of `TARGETS`. settings: of the job. kind: of its rounds; None is the job's default.
        label: what distinguishes it from the job's first example, after the job's name.
    """

    target: str = NUMBER
    settings: Mapping[str, Any] = {}
    kind: type[Kind] | None = None
    label: str = ""


class Clean(NamedTuple):
    """Clean data of a job.

    Attributes:
        designs: a name of `DESIGNS`. settings: of the job.
        clients, epsilon: more for jobs that rightly warn with less, as if the prior weighs more than noisy reports.
    """

    designs: str = NUMBER
    settings: Mapping[str, Any] = {}
    clients: int = 5_000
    epsilon: float = 2.0


def problem(target: str, n: int) -> Problem:
    """Return n invented rows of features a and b, with an event for durations, and a target y of that kind."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, 2)).clip(-4, 4)
    if target == PAIRS:
        X = (0.4 * X + np.where(rng.random(n) < 0.6, 2, -2)[:, None]).clip(-4, 4)
    eta = X @ [1.0, -1.0]
    y, ends = {
        NUMBER: ((eta + rng.normal(scale=0.5, size=n)).clip(-6, 6), (-6, 6)),
        CLASS: ((eta + rng.logistic(scale=0.3, size=n) > 0).astype(float), (0, 1)),
        COUNT: (rng.poisson(2.0, size=n).clip(0, 4).astype(float), (0, 4)),
        PAIRS: (np.zeros(n), (-1, 1)),
        TIME: (rng.exponential(5.0, size=n).clip(0, 20), (0, 20)),
        GRADE: (_grade(rng, eta), (1, 4)),
        KIND: (_kind(rng, eta), (0, 2)),
    }[target]
    bounds: dict[str, Any] = {"a": (-4, 4), "b": (-4, 4), "y": ends}
    features: tuple[str, ...] = ("a", "b")
    if target == TIME:
        X, features, bounds = np.c_[X, rng.random(n) < 0.7], (*features, "event"), {**bounds, "event": (0, 1)}
    return Problem("made", Schema(features, "y", bounds), X, y)


# --- clean designs ----------------------------------------------------------------------------------------------------

_FEATURES: dict[str, tuple[Callable[[Rng, int], np.ndarray], Interval, float]] = {
    NORMAL: (lambda rng, n: rng.standard_normal(n), Interval(-5, 5), 1.0),
    SKEWED: (lambda rng, n: rng.exponential(size=n), Interval(0, 12), 1.0),
    BINARY: (lambda rng, n: (rng.random(n) < SHARE).astype(float), Interval(0, 1), float(np.sqrt(SHARE * (1 - SHARE)))),
}
"""By name: values of a column, public bounds that are wide enough, and the standard deviation."""
_MIXED = ((NORMAL,) * 3, (SKEWED, NORMAL), (NORMAL, SKEWED, BINARY), (BINARY, NORMAL))
_PLAIN = ((NORMAL,) * 3,)
_REAL = Interval(-9, 11)


def _rows(kinds: tuple[str, ...], target: Callable[[Rng, np.ndarray], np.ndarray], ends: Interval) -> Design:
    """Return a design of these features, and of a target given the linear predictor, whose deviation is about 1."""
    names = tuple("abc"[: len(kinds)])
    bounds = {name: _FEATURES[kind][1] for name, kind in zip(names, kinds, strict=True)}

    def drawn(rng: Rng, n: int) -> Problem:
        X = np.column_stack([_FEATURES[kind][0](rng, n) for kind in kinds])
        effects = np.array([0.6, -0.5, 0.4])[: len(kinds)] / [_FEATURES[kind][2] for kind in kinds]
        y = np.clip(target(rng, (X - X.mean(axis=0)) @ effects), ends.lower, ends.upper)
        return Problem("clean", Schema(names, "y", {**bounds, "y": ends}), X, y)

    return drawn


def _alone(values: Callable[[Rng, int], np.ndarray], ends: Interval) -> Design:
    """Return a design of one column."""
    schema = Schema((), "y", {"y": ends}, alone=True)
    return lambda rng, n: Problem("clean", schema, np.empty((n, 0)), np.clip(values(rng, n), ends.lower, ends.upper))


def _number(rng: Rng, eta: np.ndarray) -> np.ndarray:
    return 1 + eta + rng.standard_normal(len(eta))


def _class(rng: Rng, eta: np.ndarray) -> np.ndarray:
    return np.asarray(rng.random(len(eta)) < expit(eta - 0.5), float)


def _count(rng: Rng, eta: np.ndarray) -> np.ndarray:
    return rng.poisson(np.exp(1 + 0.5 * eta)).astype(float)


def _outliers(rng: Rng, eta: np.ndarray) -> np.ndarray:
    return 1 + eta + 0.7 * rng.standard_t(4, len(eta))


def _grade(rng: Rng, eta: np.ndarray) -> np.ndarray:
    latent = eta + rng.logistic(size=len(eta))
    return np.asarray(1.0 + np.searchsorted([-1.5, 0.0, 1.5], latent))


def _kind(rng: Rng, eta: np.ndarray) -> np.ndarray:
    """Draw from a softmax by Gumbel's trick."""
    size = np.column_stack([0.5 + 0 * eta, eta, -0.5 * eta]) + rng.gumbel(size=(len(eta), 3))
    return np.asarray(size.argmax(axis=1), float)


def _trial(kinds: tuple[str, ...]) -> Design:
    """Return a design of durations with censoring, an event column last among the features."""

    def drawn(rng: Rng, n: int) -> Problem:
        known = _rows(kinds, lambda rng, eta: eta, Interval(-50, 50))(rng, n) if kinds else None
        X, eta = (np.empty((n, 0)), np.zeros(n)) if known is None else (known.X, known.y)
        life, leave = rng.exponential(8 * np.exp(-0.5 * eta)), rng.uniform(2, 24, n)
        bounds = {} if known is None else {name: known.schema.bounds[name] for name in known.schema.features}
        schema = Schema((*bounds, "event"), "y", {**bounds, "event": Interval(0, 1), "y": Interval(0, 24)})
        return Problem("clean", schema, np.column_stack([X, life <= leave]), np.minimum(np.minimum(life, leave), 24))

    return drawn


def _heaps(rng: Rng, n: int) -> Problem:
    X = 0.5 * rng.standard_normal((n, 2)) + np.where(rng.random(n) < 0.6, 2, -2)[:, None]
    bounds = {"a": Interval(-5, 5), "b": Interval(-5, 5), "y": Interval(-1, 1)}
    return Problem("clean", Schema(("a", "b"), "y", bounds), X, np.zeros(n))


def _dependent(rng: Rng, n: int) -> Problem:
    kind = rng.random(n) < 0.5
    X = np.column_stack([kind, np.where(kind, 1.0, -1.0) + 0.7 * rng.standard_normal(n)])
    bounds = {"kind": Interval(0, 1), "x": Interval(-4, 4), "y": Interval(-6, 6)}
    return Problem("clean", Schema(("kind", "x"), "y", bounds), X, (2 * X[:, 1] + rng.standard_normal(n)).clip(-6, 6))


def _two_groups(rng: Rng, n: int) -> Problem:
    arm, y = rng.random(n) < 0.4, rng.normal(20, 3, n).clip(5, 35)
    return Problem(
        "clean", Schema(("arm",), "y", {"arm": Interval(0, 1), "y": Interval(5, 35)}), np.array(arm[:, None], float), y
    )


DESIGNS: dict[str, list[Design]] = {
    NUMBER: [_rows(kinds, _number, _REAL) for kinds in _MIXED],
    CLASS: [_rows(kinds, _class, Interval(0, 1)) for kinds in _MIXED],
    COUNT: [_rows(kinds, _count, Interval(0, 60)) for kinds in _MIXED],
    GRADE: [_rows(kinds, _grade, Interval(1, 4)) for kinds in _MIXED],
    KIND: [_rows(kinds, _kind, Interval(0, 2)) for kinds in _MIXED],
    "outliers": [_rows(kinds, _outliers, Interval(-20, 22)) for kinds in _MIXED],
    "normal features": [_rows(kinds, _number, _REAL) for kinds in _PLAIN],
    PAIRS: [_heaps],
    TIME: [_trial(kinds) for kinds in _MIXED],
    "durations alone": [_trial(())],
    "a normal column": [_alone(lambda rng, n: rng.normal(20, 3, n), Interval(5, 35))],
    "two groups": [_two_groups],
    "dependent columns": [_dependent],
    "a column of classes": [
        _alone(lambda rng, n: rng.random(n) < 0.5, Interval(0, 1)),
        _alone(lambda rng, n: rng.random(n) < SHARE, Interval(0, 1)),
    ],
    "a column of categories": [
        _alone(lambda rng, n: rng.integers(0, 4, n), Interval(0, 3)),
        _alone(lambda rng, n: rng.choice(4, n, p=[0.7, 0.1, 0.1, 0.1]), Interval(0, 3)),
    ],
    "a column of answers": [_alone(lambda rng, n: rng.choice(4, n, p=[0.5, 0.2, 0.2, 0.1]), Interval(0, 3))],
    "a column of counts": [_alone(lambda rng, n: rng.poisson(4, n), Interval(0, 20))],
    "a column of waits": [_alone(lambda rng, n: rng.exponential(2.0, n), Interval(0, 40))],
}
"""By name; the first nine have features of several laws, but "normal features" is for models that take them so."""
