"""Whether the predictor is curved in a feature, and what that changes: from the last round's scores of curves.

Rounds of scores weigh rows far out less. If the predictor is linear in the features, that changes nothing. If it is
curved, they learn another slope than the fit of all rows: of 8,000 rows of Adult at epsilon 2, age had 1.17 times the
slope of maximum likelihood, as has the weighted fit without noise.

**Curvature.** With f = √(1 + x_j²) - 1 and the last round's weights w and curvatures q, let g be f less its regression
on all x, weighted by w q. The score of g, Σ w s g, does not change with θ to first order. Its mean is zero if the
predictor is linear, and else γ_j Σ w q g², with γ_j the coefficient of f beside x. All of that is in the released sums:
the regression from Σ w q f x and Σ w q x xᵀ, the score of g from those of f and x, and Σ w q g² from Σ w q f² and the
regression. A binary feature has g = 0, and so no curve; noise may show one, so no warning names it. The variance is
that of the noise, that of sampling (rows shortened by nothing, so it is rather too large), and a third of what may bend
in the step from φ_k. Noise in Σ w q g² counts as part of it, so where noise hides that sum, there is no curve.

**Margin.** By Cauchy and Schwarz, any weights shift a slope by at most γ_j √(Σ w q g²/Σ w q x_j²). The posterior allows
for an error of that, times the share that simulated rows lose of Σ q |x_j|³: by its third moment a curve enters a
slope. Its γ_j² is the mean square of a posterior: a share `CURVED` of features have a γ_j ~ N(0, `SIZE`²), and
the others have none. So it is small unless a curve shows. With γ_j² + its variance in its place, intervals of straight
relations were 19 % wider at 2,000 rows and ε = 1; now they are 7 %. A binary feature gets hardly any. In weighted fits
of Adult without noise, 1.4 times that covers the shifts of age and of hours of work at the clips of ε = 1 and 2, and
0.7 times the latter at those of ε = 8, since a few are far out. So the margin may be too small, and the warning says
so. Where noise hides a curve (hours at ε up to 1), a quarter of the intervals of 95 % miss without a warning.

Curves of opposite sign on both sides, such as an S, and products of features are not looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from inference.models.glm.scoring import NoisyScore, Rows, Simulation
from inference.models.linear.closed_form import symmetric
from inference.models.score_regression import WRONG, Normal, positive
from inference.problem import Array, Schema

FALSE_ALARMS = 0.02  # share of fits to straight predictors with a warning, over all features together
MATTERS = 0.25  # least shift of a slope to warn of, in its standard deviations
CURVED, SIZE = 0.2, 0.5  # share of features with a curve, and the standard deviation of their γ_j


class Curvature(NamedTuple):
    """γ_j of each standardised slope, its standard deviation, and how far it may shift the slope; each ``(q,)``.

    The slopes are those of d features, in order, for each of q/d linear predictors.
    """

    mean: Array
    sd: Array
    shift: Array

    @property
    def clear(self) -> NDArray[np.bool_]:
        """Which features have a curve; of straight ones, one in `FALSE_ALARMS` fits."""
        return np.asarray(np.abs(self.mean) > -ndtri(FALSE_ALARMS / 2 / self.mean.size) * self.sd)

    def widen(self, phi: Normal, places: Places) -> Normal:
        """Return the posterior of φ with the margin; that of a level is that of all slopes of its predictor."""
        margins = np.zeros(phi.mean.size)
        margins[places.slopes] = self.shift**2
        margins[places.levels] = (self.shift.reshape(-1, places.features) ** 2).sum(axis=1)
        return Normal(phi.mean, phi.cov + np.diag(margins))

    def warnings(self, phi: Normal, features: Sequence[str], places: Places, schema: Schema | None) -> list[str]:
        """Name the features that are clearly curved, and whose slopes may shift.

        Args:
            phi: without the margin. schema: of the job, if known: a feature with two values is never named.
        """
        straight = () if schema is None else schema.two_valued
        sds = np.sqrt(np.diag(phi.cov))[places.slopes]
        matter = np.any((self.clear & (self.shift > MATTERS * sds)).reshape(-1, places.features), axis=0).tolist()
        which = [name for name, one in zip(features, matter, strict=False) if one and name not in straight]
        return [
            f"the relation to {name} is curved, so its slope depends on how rows are weighed, and rounds weigh rows "
            "far out less; its interval allows for that only roughly; give a transform or categories of it, or raise "
            "epsilon"
            for name in which
        ]


class Places(NamedTuple):
    """Where φ has its slopes and its levels: a level for each predictor, or several for one. features: their number."""

    slopes: NDArray[np.int64]
    levels: NDArray[np.int64]
    features: int

    @classmethod
    def of_one(cls, features: int) -> Places:
        """Return those of one linear predictor with the intercept first."""
        return cls(np.arange(1, 1 + features), np.arange(1), features)


class Sums(NamedTuple):
    """What the released sums show of curves, divided by the number of rows; a row for each slope, ``(q,)``.

    Attributes:
        score: that of the curve less its regression on all others, and less its `bent` part. noise: its variance.
        left: the mean of w q g². doubt: the standard deviation of its noise. own: the mean of w q x_j².
        spread: the variance of a row's score over w q g². bent: what is not linear in the step from φ_k.
        far: the step's square, by the information. lost: of Σ q |x_j|³. factor: of q x xᵀ, for the information.
    """

    score: Array
    noise: Array
    left: Array
    doubt: Array
    own: Array
    spread: Array
    bent: Array
    far: float
    lost: Array
    factor: float = 1.0

    def curvature(self, n: float) -> Curvature:
        """Return what they show. Args: n: the number of complete rows."""
        left = np.maximum(self.left, 0.0) + self.doubt
        variance = self.noise + self.spread * left / n + (WRONG * self.bent) ** 2 + (WRONG * self.far) ** 2 * left
        mean, sd = self.score / (self.factor * left), np.sqrt(variance) / (self.factor * left)
        own = np.maximum(self.own, left)
        return Curvature(mean, sd, self.lost * np.sqrt(left / own * _square(mean, sd)))


def curvature(last: NoisyScore, rows: Rows, n: float, phi: Normal) -> Curvature | None:
    """Return the curvature from the last round; None if that did not ask for it.

    Args:
        n: the number of complete rows. phi: the posterior.
    """
    if last.curves is None:
        return None
    size, sums = rows.x.shape[1], last.curves
    unit = last.request.information * n
    inverse = np.linalg.inv(positive(symmetric(last.curved) / unit))
    line = sums.crossed / unit @ inverse
    left = sums.squares / unit - np.einsum("ji,ji->j", line, sums.crossed / unit)
    simulation = Simulation(rows, last.request, np.r_[phi.mean[:-1], max(phi.mean[-1], 0.0)])
    if not rows.family.disperses:
        simulation = Simulation(rows, last.request, phi.mean)
    bends = _bent(simulation, last.request.clip)
    bent = bends[size:] - line @ bends[:size]
    lost, spread = _about_weights(simulation, last.request.clip)
    longer, g = 1 + (line**2).sum(axis=1), last.score[:size] / n
    step = inverse @ g / last.request.information
    return Sums(
        score=(sums.score - line @ last.score[:size]) / n - bent,
        noise=last.noise_variance / n**2 * (1 + float(step @ step)) * longer,
        left=left,
        doubt=np.sqrt(last.noise_variance) / unit * longer,
        own=np.diag(symmetric(last.curved) / unit)[1:],
        spread=spread,
        bent=bent,
        far=float(g @ inverse @ g),
        lost=lost,
        factor=float(rows.family.information(last.request.phi, np.eye(size))[0, 0]),
    ).curvature(n)


def _square(mean: Array, sd: Array) -> Array:
    """Return the posterior mean of γ_j², given its estimate with this standard deviation."""
    kept = SIZE**2 / (SIZE**2 + sd**2)
    against = (1 - CURVED) / CURVED * np.exp(-((mean / sd) ** 2) * kept / 2) / np.sqrt(1 - kept)  # odds of no curve
    return np.asarray(((kept * mean) ** 2 + kept * sd**2) / (1 + against))


def _about_weights(simulation: Simulation, clip: float) -> tuple[Array, Array]:
    """Return the share that q |x_j|³ loses by the clip, and the mean of s_j² over that of q x_j²: each ``(d,)``."""
    x, shorter = simulation.rows.x, simulation.shorter(clip)
    squares = simulation.rows.family.curvature(simulation.request.phi, x)[:, None] * x[:, 1:] ** 2
    cubes, scores = squares * np.abs(x[:, 1:]), simulation.sent[0][:, 1 : x.shape[1]]
    lost = 1 - (shorter * cubes).mean(axis=0) / cubes.mean(axis=0)
    return lost, (scores**2).mean(axis=0) / squares.mean(axis=0)


def _bent(simulation: Simulation, clip: float) -> Array:
    """Return the mean of (s, s f) as sent less its linear part, if no curve is in the model: ``(2 d + 1,)``.

    It is what the clip adds, and what bends in the step from φ_k to the φ of the targets.
    """
    rows, asked, drawn = simulation.rows, simulation.request.phi, simulation.drawn
    family, x, shorter = rows.family, rows.x, simulation.shorter(clip)
    every, bent = np.hstack([x, simulation.f]), np.zeros((len(x), 1))
    if family.disperses:
        moved = (family.mean(drawn, x) - family.mean(asked, x)) * family.weight(asked, x)
        bent = (moved - x @ (drawn - asked)[: x.shape[1]] * family.curvature(asked, x))[:, None]
    if family.bounded:
        return np.asarray((shorter * bent * every).mean(axis=0))
    residual = family.score(asked, x, rows.unclipped_targets(drawn))[:, :1]
    return np.asarray(((shorter * simulation.sent[0][:, :1] - residual + bent) * every).mean(axis=0))
