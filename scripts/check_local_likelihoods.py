#!/usr/bin/env python
"""Checks the marginal likelihoods of `inference.models.fit` against numerical integration to 34 digits, far tails too.

- Each distribution of `rectified`, with noise from ε = 0.01 to 20, parameters (σ from 0.01 to 100 times the width, μ up
  to 50 widths outside), and z up to 500 scales outside: ln p, the integral of p, and the gradients. Gradients must be
  finite everywhere, and on a part of the grid equal differences of the integral's logarithm.
- Lemma 3.2 (`papers.ldp2021.lemma`) with polynomials up to degree 10 and quadratics of either curvature.
- The interpolated sum over many reports, in the range in which its error is claimed.
- The time of one gradient of a total over 5,000 reports on one core.

Takes about 4 minutes on two cores. Exit code 4 if an error is above its limit.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np
from mpmath import mp, mpf
from mpmath.calculus.quadrature import GaussLegendre
from numpy.typing import NDArray
from rich.table import Table

from papers.experiment import Experiment, Result, Sweep
from papers.runner import Check, table

DIGITS = 34
LOG_ERROR, SLOPE_ERROR, MASS_ERROR, LEMMA_ERROR, INTERPOLATION_ERROR, SLOWEST_S = 1e-8, 1e-6, 1e-9, 1e-12, 1e-10, 1e-3
LOW, HIGH = -3.0, 5.0
EPSILONS = (0.01, 0.1, 1.0, 5.0, 20.0)
SDS = (0.01, 0.2, 1.0, 5.0, 40.0, 300.0)  # of the Gaussian noise, in widths
INSIDE = (0.0, 0.001, 0.13, 0.4, 0.5, 0.87, 1.0)
OUTSIDE = (0.3, 30.0, 500.0)
NODES = (16, 32, 128, 256, 512)
NEGLIGIBLE, STEEP = 90, 8
Real = Any  # mpmath's numbers


# The references; they use nothing of the library.


def _gaussian(low: Real, high: Real, mu: Real, sigma: Real) -> Any:
    atoms = [(low, mp.log(mp.ncdf((low - mu) / sigma))), (high, mp.log(mp.ncdf((mu - high) / sigma)))]
    return atoms, _normal_of(sigma, mu), [mu]


def _exponential(low: Real, high: Real, rate: Real) -> Any:
    constant = mp.log(rate)
    return [(high, -rate * high)], lambda x: constant - rate * x, []


def _poisson(low: Real, high: Real, rate: Real) -> Any:
    atoms = [(mpf(m), m * mp.log(rate) - rate - mp.loggamma(m + 1)) for m in range(int(high))]
    return [*atoms, (high, mp.log(mp.gammainc(high, 0, rate, regularized=True)))], None, []


def _geometric(low: Real, high: Real, probability: Real) -> Any:
    atoms = [(mpf(m), mp.log(probability) + m * mp.log(1 - probability)) for m in range(int(high))]
    return [*atoms, (high, high * mp.log(1 - probability))], None, []


MODELS = {"gaussian": _gaussian, "exponential": _exponential, "poisson": _poisson, "geometric": _geometric}
"""The law of x before the noise, for mpmath: from low, high and the parameters to the atoms as (place, ln mass), ln of
the density or None, and the points where it bends."""


def _laplace_of(scale: Real) -> Callable[[Real], Real]:
    constant = mp.log(2 * scale)
    return lambda y: -abs(y) / scale - constant


def _normal_of(sd: Real, mean: Real = 0) -> Callable[[Real], Real]:
    constant = mp.log(sd * mp.sqrt(2 * mp.pi))
    return lambda y: -(((y - mean) / sd) ** 2) / 2 - constant


NOISES = {"laplace": _laplace_of, "gaussian": _normal_of}


def log_quad(log_f: Callable[[Real], Real], breaks: Sequence[Real], g: Callable[[Real], Real] | None = None) -> Any:
    """Return ln of the largest exp(log_f) at the breaks, and the integral of g exp(log_f) in units of that value.

    The panels between the breaks, where log_f must be monotone, are halved until exp(log_f) changes by no more than e^8
    within each half, or is below e^-90 throughout; then the rule of 24 nodes is exact to 30 digits.
    """
    top = max(map(log_f, breaks))
    panels, left = [], list(itertools.pairwise(sorted(set(breaks))))
    while left:
        a, b = left.pop()
        at_ends = [log_f(a) - top, log_f(b) - top]
        if max(at_ends) > -NEGLIGIBLE:
            middle = (a + b) / 2
            steep = max(abs(log_f(middle) - top - end) for end in at_ends) > STEEP
            (left.extend if steep else panels.extend)([(a, middle), (middle, b)])
    value = (lambda x: mp.exp(log_f(x) - top)) if g is None else (lambda x: g(x) * mp.exp(log_f(x) - top))
    rule = _rule(mp.prec)
    return top, mp.fsum((b - a) / 2 * mp.fsum(w * value((a + b + (b - a) * x) / 2) for x, w in rule) for a, b in panels)


@cache
def _rule(precision: int) -> list[tuple[Real, Real]]:
    """Return nodes and weights of Gauss-Legendre."""
    found: list[tuple[Real, Real]] = GaussLegendre(mp).calc_nodes(4, precision)
    return found


def log_marginal(model: str, noise: str, z: float, low: float, high: float, scale: float, *parameters: Real) -> Real:
    """Return ln p(z) by its definition."""
    z, low, high, scale = mpf(z), mpf(low), mpf(high), mpf(scale)
    atoms, log_f, bends = MODELS[model](low, high, *parameters)
    log_noise = NOISES[noise](scale)
    terms = [log_mass + log_noise(z - x) for x, log_mass in atoms]
    if log_f is not None:

        def log_both(x: Real) -> Real:
            return log_f(x) + log_noise(z - x)

        vertices = _vertices(z, scale, noise, model, parameters)
        top, integral = log_quad(log_both, _breaks(low, high, [z, *bends, *vertices]))
        terms.append(top + mp.log(integral))
    top = max(terms)
    return top + mp.log(mp.fsum(mp.exp(term - top) for term in terms))


def _vertices(z: Real, scale: Real, noise: str, model: str, parameters: Sequence[Real]) -> list[Real]:
    """Return the points where the integrand's slope may be zero."""
    if model == "exponential":
        return [z - parameters[0] * scale**2] if noise == "gaussian" else []
    mu, sigma = parameters
    if noise == "gaussian":
        return [(mu * scale**2 + z * sigma**2) / (scale**2 + sigma**2)]
    return [mu - sigma**2 / scale, mu + sigma**2 / scale]


def _breaks(low: Real, high: Real, places: Sequence[Real]) -> list[Real]:
    return [low, high, *(x for x in places if low < x < high)]


# The rectified distributions.


@dataclass(frozen=True)
class Cell:
    """One distribution with one noise: `scale` is Laplace's b or the Gaussian's sd."""

    model: str
    noise: str
    parameters: tuple[float, ...]
    high: float
    scale: float

    def __str__(self) -> str:
        return f"{self.model}-{self.noise} {self.parameters} up to {self.high:g}, scale {self.scale:.17g}"

    @property
    def low(self) -> float:
        return LOW if self.model == "gaussian" else 0.0

    @property
    def z(self) -> NDArray[np.float64]:
        """The reports to check: the ends, inside, and up to 500 scales outside."""
        out = self.scale * np.array(OUTSIDE)
        return np.concatenate([self.low - out, self.low + (self.high - self.low) * np.array(INSIDE), self.high + out])


def cells_of(quick: bool) -> list[Cell]:
    noises = [("laplace", 1 / epsilon) for epsilon in EPSILONS] + [("gaussian", sd) for sd in SDS]
    width = HIGH - LOW
    normal = itertools.product(
        [LOW - 50 * width, LOW - 2 * width, LOW, 0.3, 4.0, HIGH + 3 * width], [0.01, 0.1, 1, 10, 100]
    )
    found = [
        Cell("gaussian", noise, (mu, ratio * width), HIGH, scale * width)
        for (noise, scale), (mu, ratio) in itertools.product(noises, normal)
    ]
    for noise, scale in noises:
        rates = [1e-3, 0.1, 1 / scale, (1 + 1e-9) / scale, 1.01 / scale, 30.0, 1000.0]
        found += [Cell("exponential", noise, (rate / HIGH,), HIGH, scale * HIGH) for rate in dict.fromkeys(rates)]
        for high in (1.0, 5.0, 20.0, 150.0):
            found += [Cell("poisson", noise, (rate,), high, scale * high) for rate in (0.01, 0.9, high, 20.3, 200.0)]
            found += [Cell("geometric", noise, (share,), high, scale * high) for share in (1e-4, 0.1, 0.5, 0.99)]
    return found[:: 17 if quick else 1]


@cache
def compiled(function: Callable[..., Any], bounds: tuple[float, ...]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return ln p and its derivatives, ``(parameters, z)``, as functions of z, the parameters and the scale."""
    import jax
    import jax.numpy as jnp

    def log_p(z: Any, parameters: Sequence[Any], scale: Any) -> Any:
        return function(z, *parameters, *bounds, scale)

    return jax.jit(log_p), jax.jit(lambda *at: jnp.stack(jax.jacrev(log_p, 1)(*at)))


def ours(cell: Cell) -> tuple[Callable[[Any], NDArray[np.float64]], Callable[[Any], NDArray[np.float64]]]:
    """Return the library's ln p of the cell, and its derivatives, as functions of z."""
    from inference.models.column import rectified

    bounds = (cell.low, cell.high) if cell.model == "gaussian" else (cell.high,)
    log_p, slopes = compiled(getattr(rectified, f"{cell.model}_{cell.noise}"), bounds)

    def values(z: NDArray[np.float64]) -> NDArray[np.float64]:
        """For few different lengths, as each is compiled."""
        padded = np.append(z, np.full(-z.size % 4096, cell.low))
        return np.asarray(log_p(padded, cell.parameters, cell.scale))[: z.size]

    return values, lambda z: np.asarray(slopes(z, cell.parameters, cell.scale))


def check(cell: Cell) -> Result:
    """Return the largest errors of a cell."""
    import jax

    with jax.enable_x64(True), mp.workdps(DIGITS):
        log_p, slopes_of = ours(cell)
        found, slopes = log_p(cell.z), slopes_of(cell.z)
        references = [reference(cell, z) for z in cell.z]
        return {
            "model": f"{cell.model}-{cell.noise}",
            "log_error": max(abs(float(true - mpf(p))) for true, p in zip(references, found.tolist(), strict=True)),
            "slope_error": slope_error(cell, slopes, range(0, len(cell.z), 3)),
            "mass_error": abs(mass(cell, log_p) - 1),
            "finite": bool(np.isfinite(found).all() and np.isfinite(slopes).all()),
        }


def reference(cell: Cell, z: float, parameters: Sequence[Real] | None = None) -> Real:
    """Return ln p(z) of the cell, or with other parameters."""
    chosen = [mpf(value) for value in cell.parameters] if parameters is None else parameters
    return log_marginal(cell.model, cell.noise, float(z), cell.low, cell.high, cell.scale, *chosen)


def slope_error(cell: Cell, slopes: NDArray[np.float64], rows: Iterable[int]) -> float:
    """Return the error of derivatives at some reports against central differences; relative if one is above 1."""
    worst = 0.0
    for row, place in itertools.product(rows, range(len(cell.parameters))):
        step = mpf(10) ** -9 * max(abs(mpf(cell.parameters[place])), mpf(10) ** -3)
        moved = [[mpf(v) + (i == place) * way * step for i, v in enumerate(cell.parameters)] for way in (-1, 1)]
        below, above = (reference(cell, cell.z[row], parameters) for parameters in moved)
        true = float((above - below) / (2 * step))
        worst = max(worst, abs(slopes[place, row] - true) / max(1, abs(true)))
    return worst


def mass(cell: Cell, log_p: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> float:
    """Return the integral of p over all z, by Gauss-Legendre on panels that resolve its features."""
    nodes, weights = np.polynomial.legendre.leggauss(24)
    low, high, scale = cell.low, cell.high, cell.scale
    steps = np.arange(1, 21) * 2.0
    breaks = [low - steps * scale, high + steps * scale, np.linspace(low, high, 21)]
    if cell.noise == "gaussian":
        breaks.append(np.arange(low, high, 2 * scale))
    elif cell.model == "gaussian":
        mu, sigma = cell.parameters
        breaks.append(mu + sigma * np.arange(-20.0, 21.0, 2.0))
    elif cell.model == "exponential":
        breaks.append(2.0 ** np.arange(-10, 8) / cell.parameters[0])
    else:
        breaks.append(np.arange(high))
    all_breaks = np.unique(np.concatenate(breaks))
    a, b = all_breaks[:-1, None], all_breaks[1:, None]
    z = (a + b) / 2 + (b - a) / 2 * nodes
    return float(np.sum((b - a) / 2 * weights * np.exp(log_p(z.ravel())).reshape(z.shape)))


# Lemma 3.2.


@dataclass(frozen=True)
class Lemma:
    """g, h and z; on [LOW, HIGH], with sd 1.5."""

    g: tuple[float, ...]
    h: tuple[float, float, float]
    z: float


def lemmas_of(quick: bool) -> list[Lemma]:
    polynomials = [(2.0,), (0.0, 1.0), (1.0, -0.5, 0.3), (4.0, 0.0, -1.0), (0.0, 0.0, 0.0, 0.0, 1.0)]
    polynomials += [tuple((-1.0) ** i / math.factorial(i) for i in range(11)), (*[0.0] * 10, 1.0)]
    curved = (-2000.0, -0.5, 0.0, 0.2, 1 / 4.5, 0.3, 40.0)  # with 1/2s² = 1/4.5 the integrand has no curvature
    quadratics = [(0.1, h1, h2) for h1, h2 in itertools.product((-300.0, -1.0, 0.0, 2.0, 50.0), curved)]
    found = itertools.product(polynomials, quadratics, (-700.0, -3.0, 0.7, 6.0, 700.0))
    return [Lemma(*one) for one in found][:: 23 if quick else 1]


@cache
def compiled_lemma(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile the lemma for the interval and the noise of all cells."""
    import jax

    made: Callable[..., Any] = jax.jit(lambda z, g, h: function(z, g, h, LOW, HIGH, 1.5))
    return made


def check_lemma(cell: Lemma) -> Result:
    """Return errors relative to the integral of |g| exp(h) N, less the error of rounding the exponent."""
    import jax

    from papers.ldp2021.lemma import log_polynomial_gaussian

    with jax.enable_x64(True), mp.workdps(DIGITS):
        sd, z, h = mpf(1.5), mpf(cell.z), [mpf(value) for value in cell.h]
        log_noise = _normal_of(sd)

        def q(x: Real) -> Real:
            return h[0] + h[1] * x + h[2] * x * x + log_noise(z - x)

        def g(x: Real) -> Real:
            return mp.fsum(mpf(value) * x**power for power, value in enumerate(cell.g))

        curvature = 1 / sd**2 - 2 * h[2]
        vertices = [(z / sd**2 + h[1]) / curvature] if curvature else []
        roots = np.roots(np.trim_zeros(np.array(cell.g[::-1]), "f")) if len(cell.g) > 1 else np.array([])
        real = [float(root.real) for root in roots if abs(root.imag) < 1e-6]
        breaks = _breaks(mpf(LOW), mpf(HIGH), [*vertices, *real])
        top, true = log_quad(q, breaks, g)
        whole = log_quad(q, breaks, lambda x: abs(g(x)))[1]
        log_size, sign = compiled_lemma(log_polynomial_gaussian)(cell.z, cell.g, cell.h)
        error = abs(float((mpf(float(sign)) * mp.exp(mpf(float(log_size)) - top) - true) / whole))
        largest = max(abs(float(top)), *(abs(float(q(x))) for x in breaks[:2]))
    return {"model": f"degree {len(cell.g) - 1}", "error": error, "allowed": LEMMA_ERROR + 1e-15 * largest}


# The sum over many reports.


def check_interpolation(cell: tuple[int, float], quick: bool) -> Result:
    """Return the largest error for one report over nodes and ε; the summary has more copies of it than nodes."""
    import jax

    from inference.models.column import rectified

    (nodes, epsilon), width = cell, HIGH - LOW
    places = np.linspace(LOW - width / 10, HIGH + width / 10, 21 if quick else 97)
    with jax.enable_x64(True):
        worst = 0.0
        bounds = LOW, HIGH, width / epsilon
        mu, sigma = map(
            np.ravel, np.meshgrid(LOW + width * np.linspace(-1.5, 2.5, 161), np.array([1, 1.3, 3, 20, 1e3]))
        )
        function = jax.jit(jax.vmap(rectified.gaussian_laplace_sum, (None, 0, 0)))
        one_report = jax.jit(lambda z, mu, sigma: rectified.gaussian_laplace(z, mu, sigma, *bounds))
        for z in places:
            summary = rectified.summarise(np.full(nodes + 1, z), *bounds, nodes=nodes)
            one = one_report(z, mu, sigma * summary.narrowest)
            found = function(summary, mu, sigma * summary.narrowest) / (nodes + 1)
            worst = max(worst, float(np.max(np.abs(found - one))))
    return {"nodes": nodes, "epsilon": epsilon, "error": worst}


# Speed.


EACH, INTERPOLATED = FORMS = ("each report", "interpolated")


def timed(form: str, seed: int) -> Result:
    """Return the seconds of one value with its gradient over 5,000 reports inside the bounds, compiled, in a loop."""
    import jax

    from inference.models.column import rectified

    draws, turns = np.random.default_rng(seed), 300
    with jax.enable_x64(True):
        bounds = LOW, HIGH, HIGH - LOW
        reports = jax.device_put(draws.uniform(LOW, HIGH, 5000))
        summary = jax.device_put(rectified.summarise(reports, *bounds))

        def total(mu: Any, sigma: Any, values: Any) -> Any:
            if form == INTERPOLATED:
                return rectified.gaussian_laplace_sum(values, mu, sigma)
            return rectified.gaussian_laplace(values, mu, sigma, *bounds).sum()

        def turn(_: int, state: Any) -> Any:
            value, (by_mu, by_sigma) = jax.value_and_grad(total, (0, 1))(state[0], state[1], state[2])
            return state[0] + 1e-300 * (value + by_mu + by_sigma), state[1], state[2]

        run_all = jax.jit(lambda state: jax.lax.fori_loop(0, turns, turn, state)[0])
        state = (1.0, 2.0, summary if form == INTERPOLATED else reports)
        run_all(state).block_until_ready()
        seconds = math.inf
        for _ in range(5):
            began = time.perf_counter()
            run_all(state).block_until_ready()
            seconds = min(seconds, (time.perf_counter() - began) / turns)
    return {"form": form, "gradient_s": seconds, "for_a_report_ns": seconds / 5000 * 1e9}


@dataclass(frozen=True, kw_only=True)
class LikelihoodCheck(Experiment[Any, dict[str, list[Result]]]):
    __doc__ = __doc__
    KIND, LABEL, QUICK_CHECKS, DEPENDS = "check-local-likelihoods", "marginals", True, ("small",)
    QUICK: ClassVar = {"small": True}

    small: bool = False

    def results(self, sweep: Sweep) -> dict[str, list[Result]]:
        noises = [(nodes, epsilon) for nodes in NODES for epsilon in (0.1, 1.0, 5.0, nodes / 10.01)]
        grid = [(nodes, epsilon) for nodes, epsilon in noises if epsilon <= nodes / 10]
        interpolation = partial(check_interpolation, quick=self.small)
        return {
            "marginals": sweep(cells_of(self.small), check),
            "lemma": sweep(lemmas_of(self.small), check_lemma, label="Lemma 3.2"),
            "interpolation": sweep(grid, interpolation, label="interpolation"),
            "times": sweep(FORMS, partial(timed, seed=self.seed), label="speed", processes=1, journal=None),
        }

    def notes(self, found: dict[str, list[Result]]) -> dict[str, Any]:
        return {"digits": DIGITS}

    def tables(self, found: dict[str, list[Result]]) -> Iterator[Table]:
        shown = table("largest errors", "likelihood", "cells", "ln p", "gradient", "integral")
        for model in dict.fromkeys(one["model"] for one in found["marginals"]):
            own = [one for one in found["marginals"] if one["model"] == model]
            worst = (max(one[name] for one in own) for name in ("log_error", "slope_error", "mass_error"))
            shown.add_row(model, str(len(own)), *(f"{error:.1e}" for error in worst))
        yield shown
        shown = table("value and gradient over 5,000 reports, one core", "form", "µs", "ns for a report")
        for one in found["times"]:
            shown.add_row(one["form"], f"{one['gradient_s'] * 1e6:.1f}", f"{one['for_a_report_ns']:.1f}")
        yield shown

    def checks(self, found: dict[str, list[Result]]) -> Iterator[Check]:
        asked = {"log_error": LOG_ERROR, "slope_error": SLOPE_ERROR, "mass_error": MASS_ERROR}
        for name, limit in asked.items():
            worst = max(one[name] for one in found["marginals"])
            yield Check(name.replace("_", " "), f"at most {limit:g}", f"{worst:.1e}", worst <= limit)
        lost = sum(not one["finite"] for one in found["marginals"])
        yield Check("all values and gradients are finite", "0 cells that are not", str(lost), lost == 0)
        worst = max(one["error"] / one["allowed"] for one in found["lemma"])
        yield Check("Lemma 3.2", "an error below what is allowed", f"{worst:.2g} of that", worst <= 1)
        error, slowest = max(o["error"] for o in found["interpolation"]), max(o["gradient_s"] for o in found["times"])
        yield Check("interpolation", f"at most {INTERPOLATION_ERROR:g}", f"{error:.1e}", error <= INTERPOLATION_ERROR)
        asked_s, found_s = f"a gradient within {SLOWEST_S * 1e3:g} ms", f"{slowest * 1e3:.2g} ms"
        yield Check("speed", asked_s, found_s, slowest <= SLOWEST_S)


if __name__ == "__main__":
    sys.exit(LikelihoodCheck.main())
