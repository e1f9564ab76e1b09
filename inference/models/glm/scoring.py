"""Private Fisher scoring: a generalised linear model from a few noisy sums of clipped scores.

    φ       the parameters; φ* the true ones               n    rows
    t_k     what a row sends in round k at a public φ_k: a score s, terms of the information, clipped to C_k
    s̃_k     the score's part of it                         G_k, A_k  the noisy sum of s̃_k, and the information beside it
    M_k, D_k, K   mean of s̃_k at φ*, its derivative by φ*, and its covariance

The clients' scores at φ_k show where the true parameters are. By the central limit theorem, near the solution

    G_k = n M_k + e_k,   M_k = b_k + D_k (φ* + ζ - φ_k)    ζ ~ N(0, D⁻¹ K D⁻¹/n): the same rows, in all rounds    (1)
                                                           e_k ~ N(0, (N_k (1 + |f (φ* - φ_k)|²/v²) + n² m_k²/9) I)

This is a linear regression with known noise: with the prior N(φ₀, P⁻¹), (φ, ζ) has a normal posterior, from which ζ is
integrated out. It includes sampling error, privacy noise and all correlations. One round gives one step of Newton's
method, and several give their weighted mean. Later rounds get larger shares of the budget (`job.SHARES`), so the last
one, which is nearest to the solution, counts most.

**Features of any law.** D_k is the information A_k that the clients themselves send, so nothing is assumed about the
features. Each of its terms has noise of variance N_k/v², v being the term's weight. This noise is multiplied by the
distance φ* - φ_k, and is part of e_k. f is 1, or the factor that turns terms of q x xᵀ into the information.

**Bounded residuals**, as for two classes and Student-t with up to 5 degrees: clients shorten rows by their features
alone, s̃ = w(x) s (`dca_proto.statistics.gradient`). A score has mean zero given x. So b = 0, and A_k, whose terms have
the same weights, is D_k itself: nothing is distorted, whatever the law of the features. Only K = E[w² s sᵀ] comes from
rows that the trainer simulates. They are normal with the moments of A_1 (at θ = 0, where it is a multiple of
Σ w x xᵀ), and K is transferred to the clients' A as below.

**Two classes and counts** bend. From slopes of 0, the first step to a rare class or to strong effects falls short by a
half, or overshoots for counts, and the weighted mean of all rounds with it. So M_k is the mean in the simulation at the
estimate, Newton's method solves for φ, and only the part of M_k that is not linear has the margin of a third (for
counts, whose mean has no bound, also that of a step, below). Steps get shorter after some passes, so there are no
cycles; the last one is part of the spread. The information A_k of a rare class may be mostly noise. It is drawn to the
simulated one, in as far as noise hides differences of `LAW` between them.

**Counts** have no bound, and the bound of Student-t with more degrees is far above most residuals. Their clip is in the
model. b_k, and the factors by which clipping changes D_k and K, come from simulated rows, with targets from the model
at the estimate (for Student-t at φ_k); scores keep the round's κ_k. At θ_k, let I be the information
in the simulation, s the unclipped score, and l the likelihood's score at the κ of the targets. Then

    b = E[s̃ - s]      D = I + E[(s̃ - s) lᵀ]      K = Cov[s̃]                                                       (2)

are transferred to the clients' A in the coordinates in which the information is the identity: A^½ I^-½ D I^-½ A^½. κ
has no score of mean zero; its column of D is a difference quotient. So the features' law matters only for the part
that is clipped.

**Margins.** That law is never exactly normal, and (1) never exactly linear. So the posterior allows for an error in M_k
of a third of m_k, its largest coordinate. Every coordinate gets the same margin, because far from the solution the step
of one coordinate also moves the scores of the others. The step of the last parameter (κ or ln σ) enters only its own
margin, because θ's scores are orthogonal to it. In e_k, φ* is an estimate: first the last round's Newton step, then the
posterior mean until it converges. Each round's own step would not do, because far from strong effects it falls short.
The error of Newton's method grows with the distance squared, and so does the margin of a step. Below a distance of √0.1
the margin is a tenth of the step, because the clip also changes D_k.

**The clip** minimises V + (3h)², summed over φ. V is the posterior's variance at that clip, and h the bias that the
clip would cause if it were not in the model. Real features may have longer tails than simulated ones, so that the clip
removes several times as much: hence the factor of 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag
from scipy.special import ndtri

from dca_proto.statistics.gradient import curves_of
from inference.models.glm.families import Family
from inference.models.linear.closed_form import symmetric
from inference.models.score_regression import (
    FLOOR,
    TINY,
    WRONG,
    Normal,
    Prior,
    positive,
    regressed,
    root,
    spread_points,
)
from inference.problem import Array

SIMULATED_LOG2 = 12  # log2 of the number of simulated rows
DRAWN_MAX = 8  # the most sets of their targets that are kept
PLANNED = 3.0  # factor of h when choosing a clip: features may have longer tails than simulated ones
STEP_MAX = 1.0  # of the estimate of two classes' φ, from one pass to the next
LAW = 0.3  # by how much the information of features of any law may differ from that of normal ones, as a share
NEAR = 0.1  # squared distance below which a step's margin is proportional to the step
PASSES, SHORTER, CONVERGED = 8, 4, 0.1  # of moving φ*: the most passes, further ones if M bends; the last move in sds
DIFFERENCE = 0.1  # of κ, for difference quotients
QUANTILES = (0.3, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0)  # of norms: the candidates for a clip
INFORMATION, DISPERSION = 1.0, 0.5  # typical norm of the information, and of κ's largest term, relative to the score's


class Request(NamedTuple):
    """The request of a round: φ_k, C_k, the weights of the information and of κ's term before clipping, and curves.

    Only the last round asks for κ's term (else its weight is 0): far from θ*, residuals are large whatever κ is. It
    alone asks for the scores of curves (`curves`).
    """

    phi: Array
    clip: float
    information: float
    dispersion: float
    curves: bool = False


class Curves(NamedTuple):
    """Noisy sums of the scores of curves: s f_j, ``(d,)``; weighted q f_j x, ``(d, d + 1)``, and q f_j², ``(d,)``."""

    score: Array
    crossed: Array
    squares: Array


class NoisyScore(NamedTuple):
    """The result of a round: its request, and the noisy sums.

    Attributes:
        score: G_k, shape ``(p,)``. curved: sum of the weighted unique terms of q x xᵀ.
        noise_variance: of each coordinate of both.
        observed: which parameters G_k informs about, shape ``(p,)``; not κ unless its term was sent. curves: if sent.
    """

    request: Request
    score: Array
    curved: Array
    noise_variance: float
    observed: NDArray[np.bool_]
    curves: Curves | None = None


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows that the trainer simulates.

    Attributes:
        family: the model. squares: E[x xᵀ] of the standardised features with the constant first, ``(d + 1, d + 1)``.
        feature_bound, target_bounds: clients' bounds of features, shape ``(d,)``, and target, in the model's units.
    """

    family: Family
    squares: Array
    feature_bound: Array
    target_bounds: tuple[float, float]

    @cached_property
    def x(self) -> Array:
        """The features with the constant first, shape ``(m, d + 1)``."""
        mean = self.squares[0, 1:] / self.squares[0, 0]
        values, vectors = np.linalg.eigh(self.squares[1:, 1:] / self.squares[0, 0] - np.outer(mean, mean))
        x = mean + ndtri(self._uniform[:, 2:]) @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
        return np.insert(np.clip(x, -self.feature_bound, self.feature_bound), 0, 1.0, axis=1)

    @cached_property
    def _uniform(self) -> Array:
        """Sobol points, with two coordinates for the target; errors of their means fall about as 1/m."""
        return np.clip(spread_points(len(self.squares) + 1, SIMULATED_LOG2), TINY, 1 - TINY)

    def targets(self, phi: Array) -> Array:
        """Draw targets from the model at φ, and clip them as clients do."""
        return np.clip(self.unclipped_targets(phi), *self.target_bounds)

    def unclipped_targets(self, phi: Array) -> Array:
        """Draw targets from the model at φ."""
        if (key := phi.tobytes()) not in self._drawn:
            if len(self._drawn) >= DRAWN_MAX:
                self._drawn.clear()
            self._drawn[key] = self.family.targets(phi, self.x, self._uniform[:, :2])
        return self._drawn[key]

    @cached_property
    def _drawn(self) -> dict[bytes, Array]:
        """The targets drawn last; all rounds draw them at the same estimate."""
        return {}


class Expected(NamedTuple):
    """Moments in the simulation: M (p,), D (p, p), K (p, p), the parts of M that depend on the law of x (2, p), and I.

    Attributes:
        unsure: what the clip adds to a score of mean zero, and what is not linear in the step from φ_k.
    """

    mean: Array
    slope: Array
    cov: Array
    unsure: Array
    information: Array


@dataclass(frozen=True, eq=False)
class Simulation:
    """The unclipped answers of simulated rows to a request, with targets drawn at φ = ``drawn``."""

    rows: Rows
    request: Request
    drawn: Array

    @cached_property
    def sent(self) -> tuple[Array, Array]:
        """The scores as sent, shape ``(m, p)``, and the weighted terms of the information."""
        x, phi = self.rows.x, self.request.phi
        i, j = np.triu_indices(x.shape[1])
        curved = self.request.information * self.rows.family.curvature(phi, x)[:, None] * x[:, i] * x[:, j]
        return self._sent(self.drawn), curved

    def _sent(self, drawn_at: Array) -> Array:
        """Return the scores as sent, for targets drawn at this φ."""
        return self.rows.family.sent(
            self.request.phi, self.rows.x, self.rows.targets(drawn_at), self.request.dispersion
        )

    @cached_property
    def _sent_at_larger_dispersion(self) -> Array:
        """The scores as sent if κ is larger by `DIFFERENCE`."""
        phi = self.drawn.copy()
        phi[-1] = max(phi[-1], 0.0) + DIFFERENCE
        return self._sent(phi)

    @cached_property
    def _scores(self) -> tuple[Array, Array]:
        """s and l of the unclipped targets."""
        family, x, y = self.rows.family, self.rows.x, self.rows.unclipped_targets(self.drawn)
        return family.score(self.request.phi, x, y), family.likelihood_score(self.drawn, x, y)

    @cached_property
    def norms(self) -> Array:
        """The norm of each row's whole answer, shape ``(m,)``; for bounded residuals the largest over all targets."""
        return self._norms_of(self.sent[0])

    @cached_property
    def f(self) -> Array:
        """The features' curves if they are sent, ``(m, d)``; else without columns."""
        return curves_of(self.rows.x[:, 1:]) if self.request.curves else np.zeros((len(self.rows.x), 0))

    def _norms_of(self, score: Array) -> Array:
        family, phi, x, curves = self.rows.family, self.request.phi, self.rows.x, (self.f**2).sum(axis=1)
        size, square = (x**2).sum(axis=1), (self.sent[1] ** 2).sum(axis=1)
        longest = np.sqrt((score**2).sum(axis=1) + score[:, 0] ** 2 * curves)
        if family.bounded:
            longest = family.score_bound(phi, x, np.sqrt(size + curves))
        information = (self.request.information * family.curvature(phi, x)) ** 2
        return np.asarray(np.sqrt(longest**2 + square + information * (curves * size + (self.f**4).sum(axis=1))))

    def expected(self, clip: float) -> Expected:
        """Return the moments for the clip C, of equation (2) if targets are drawn at φ_k."""
        family, sent, shorter = self.rows.family, self.sent[0], self.shorter(clip)
        kept, p = sent * shorter, sent.shape[1]
        information, mean, bent, slope = self.information(clip), np.zeros(p), np.zeros(p), np.zeros((p, p))
        moved, q = np.zeros_like(kept), len(information)
        if family.disperses:
            moved[:, :-1], slope[:-1, :-1] = self._of_means(shorter if family.bounded else 1.0)
            mean = moved.mean(axis=0)
            bent[:-1] = mean[:-1] - information @ (self.drawn - self.request.phi)[:-1]
        else:
            slope[:q, :q] = information
        if family.bounded:
            return Expected(mean, slope, np.cov((kept - moved).T), np.stack([0 * bent, bent]), information)
        cov = np.cov((kept - shorter * moved).T)
        score, likelihood = self._scores
        off, q = kept - score, likelihood.shape[1]
        slope[:, :q] += off.T @ likelihood / len(off)
        if q < p:
            other = self._sent_at_larger_dispersion
            longer = np.maximum(1.0, self._norms_of(other) / clip)[:, None]
            slope[:, -1] = (other / longer - kept).mean(axis=0) / DIFFERENCE
        shift = off.mean(axis=0)
        return Expected(mean + shift, slope, cov, np.stack([_centred(family, p) * shift, bent]), information)

    def _of_means(self, shorter: Array | float) -> tuple[Array, Array]:
        """Return E[s | x] times these factors, ``(m, d + 1)``, and the derivative of its mean by θ."""
        family, x, asked = self.rows.family, self.rows.x, self.request.phi
        weighted = family.weight(asked, x)[:, None] * shorter * x
        moved = (family.mean(self.drawn, x) - family.mean(asked, x))[:, None] * weighted
        return moved, (weighted * family.rise(self.drawn, x)[:, None]).T @ x / len(x)

    def shorter(self, clip: float) -> Array:
        """Return the factor by which each row is shortened, ``(m, 1)``."""
        return np.asarray(1 / np.maximum(1.0, self.norms / clip)[:, None])

    def information(self, clip: float) -> Array:
        """Return I: of rows as clients send them if residuals are bounded, else of rows before the clip."""
        curved = self.sent[1] * (self.shorter(clip) if self.rows.family.bounded else 1.0)
        return self.rows.family.information(self.request.phi, self._mean(curved))

    def taken(self, clip: float) -> Array | float:
        """Return the loss by clipping in the mean of q x xᵀ, as far as `information` is without it."""
        return 0.0 if self.rows.family.bounded else self._mean(self.sent[1] * (1 - self.shorter(clip)))

    def _mean(self, curved: Array) -> Array:
        return np.asarray(symmetric(curved.mean(axis=0)) / self.request.information)


def squares_of(first: NoisyScore, family: Family, n: float) -> Array:
    """Return E[x xᵀ] from a round at slopes of 0, where q is the same for all rows."""
    squares = symmetric(first.curved) / (first.request.information * n)
    return positive(squares / float(family.curvature(first.request.phi, np.eye(1, len(squares)))[0]))


def posterior(rounds: Sequence[NoisyScore], rows: Rows, n: float, prior: Prior) -> Normal:
    """Return the posterior of φ given the rounds.

    Args:
        rounds: at least one. n: number of rows in the sums.
    """
    bends, last = rows.family.disperses, rounds[-1]
    near = last.request.phi if bends else _newton(last, _carried_over(last, rows, n, None), n, prior)
    for count in range(PASSES + SHORTER * bends):
        parts = [_carried_over(one, rows, n, near if bends else None) for one in rounds]
        result, before = _regressed(rounds, parts, n, prior, near), near
        step = result.mean - before
        most = STEP_MAX / 2 ** max(0, count - PASSES) if bends else np.inf  # no cycles
        near = before + step * min(1.0, most / max(float(np.linalg.norm(step)), TINY))
        if np.all(np.abs(step) < CONVERGED * np.sqrt(np.diag(result.cov))):
            break
    return Normal(result.mean, result.cov + bends * np.outer(step, step))


class _Part(NamedTuple):
    """φ_k, f, M, D, K and the unsure parts of M of one round, based on the clients' own information.

    Attributes:
        about: the φ at which M and D are; M is linear about it.
        known: whether M is at an estimate of φ* and bends little: by no more than two classes' scores do.
        noise: variance of the noise in the information per squared distance |φ* - φ_k|², divided by N_k.
    """

    phi: Array
    mean: Array
    slope: Array
    cov: Array
    unsure: Array
    about: Array
    known: bool
    noise: float


def _carried_over(one: NoisyScore, rows: Rows, n: float, near: Array | None) -> _Part:
    """Transfer the simulation's moments to the clients' information.

    Args:
        near: an estimate of φ*, at which targets are drawn; None for scores that are linear.
    """
    request, p, family = one.request, one.score.size, rows.family
    drawn = request.phi if near is None else near
    if family.disperses:
        drawn = np.r_[drawn[:-1], max(drawn[-1], 0.0)]
    simulation = Simulation(rows, request, drawn)
    simulated = simulation.information(request.clip)
    curved = symmetric(one.curved) / (request.information * n) + simulation.taken(request.clip)
    information = family.information(request.phi, positive(curved))
    factor = float(family.information(request.phi, np.eye(rows.x.shape[1]))[0, 0])
    noise = (factor / request.information) ** 2
    if near is not None:
        known = _known(simulated, one.noise_variance * noise / n**2)
        information, noise = positive(simulated + known * (information - simulated)), noise * known
    across = root(information, 0.5) @ root(simulated, -0.5)
    across = block_diag(across, np.eye(p - len(across)))
    if near is not None:
        as_simulated = request.phi + across.T @ (drawn - request.phi)
        simulation = Simulation(rows, request, np.r_[as_simulated[:-1], drawn[-1]])
    mean, slope, cov, unsure, _ = simulation.expected(request.clip)
    slope, cov = across @ slope @ across.T, across @ cov @ across.T
    asked = np.r_[request.phi[:-1], drawn[-1]] if family.disperses else request.phi
    return _Part(asked, across @ mean, slope, cov, unsure @ across.T, drawn, near is not None and family.bounded, noise)


def _known(information: Array, noise: float) -> float:
    """Return the share of the clients' information that is kept: less if noise hides how far it is from this one.

    Features of any law may differ from normal ones by `LAW`; noise has this variance in each term.
    """
    law = float(LAW * np.trace(information) / len(information)) ** 2
    return law / (law + noise)


def _newton(one: NoisyScore, part: _Part, n: float, prior: Prior) -> Array:
    """Return φ after one Newton step from this round alone, with only its privacy noise."""
    weighted = n * part.slope.T * (one.observed / (one.noise_variance + FLOOR * n * float(np.trace(part.cov))))
    pull = weighted @ (one.score - n * part.mean + n * part.slope @ part.about) + prior.precision * prior.mean
    return np.asarray(np.linalg.solve(weighted @ (n * part.slope) + np.diag(prior.precision), pull))


def _regressed(rounds: Sequence[NoisyScore], parts: Sequence[_Part], n: float, prior: Prior, near: Array) -> Normal:
    """Solve equation (1) as a linear regression, ζ integrated out. Args: near: an estimate of φ*, for margins."""
    last = parts[-1]
    own = n * last.slope.T @ np.linalg.solve(positive(last.cov), last.slope)
    return regressed(prior, own, (
        (n * part.slope, one.observed / _variances(one, part, n, near),
         one.score - n * part.mean + n * part.slope @ part.about)
        for one, part in zip(rounds, parts, strict=True)
    ))  # fmt: skip


def _variances(one: NoisyScore, part: _Part, n: float, near: Array) -> Array:
    """Return the variances of e_k, shape ``(p,)``. Args: near: an estimate of φ*."""
    apart = (near - part.phi) ** 2
    far = float(apart[:-1].sum())
    linear = NEAR if part.known else max(NEAR, far)
    squares = (part.unsure**2).sum(axis=0) + linear * (part.slope**2 @ np.r_[apart[:-1], 0.0])  # θ's step
    own = part.slope[-1, -1] ** 2 * apart[-1]
    squares = np.r_[np.full(apart.size - 1, squares[:-1].max()), max(squares.max(), own)]
    floor = FLOOR * n * float(np.trace(part.cov))
    return np.asarray(one.noise_variance * (1 + part.noise * far) + floor + (WRONG * n) ** 2 * squares)


def _centred(family: Family, p: int) -> Array:
    """Return 1 for each score of mean zero, and 0 for κ's term."""
    return np.asarray(np.r_[np.ones(p - 1), float(not family.disperses)])


def best_request(
    rows: Rows, phi: Array, n: float, noise_per_sensitivity: float, prior: Prior, *, last: bool, curves: bool = False
) -> Request:
    """Return the next round's request at φ, with the clip of least loss.

    Args:
        last: whether it is the last round. curves: whether to ask for the scores of curves.
        noise_per_sensitivity: standard deviation of the round's noise for each unit of the L2 sensitivity 2C.
    """
    score, curved = Simulation(rows, Request(phi, np.inf, 1.0, 0.0), phi).sent
    typical, of_terms = (float(np.median(np.linalg.norm(part, axis=1))) for part in (score, curved))
    weight = DISPERSION * typical if last and rows.family.sends_dispersion else 0.0
    request = Request(phi, np.inf, INFORMATION * typical / of_terms, weight, curves)
    simulation, losses = Simulation(rows, request, phi), []
    clips = np.quantile(simulation.norms, QUANTILES)
    for clip in clips:
        expected = simulation.expected(clip)
        noise = (2 * clip * noise_per_sensitivity / n) ** 2 + FLOOR * float(np.trace(expected.cov)) / n
        error = expected.cov / n + noise * np.eye(phi.size)
        gain = expected.slope.T @ np.linalg.inv(error)  # for a κ without its term the slope is 0
        cov = np.linalg.inv(gain @ expected.slope + np.diag(prior.precision))
        moved = cov @ gain @ expected.unsure[0]
        losses.append(float(np.trace(cov) + ((PLANNED * moved) ** 2).sum()))
    return request._replace(clip=float(clips[int(np.argmin(losses))]))
