"""What the data nodes' scores of a logistic regression say of each site's coefficients.

    φ_k          the public coefficients of round k, the same for all sites      s̃_jk, A_jk  the site's noisy sums of
    w_k(x)       how far a row is shortened, by its features alone                Σ w_k x (y - p_k), Σ w_k q_k x xᵀ

Rounds ask the same rows, so their sampling errors are nearly the same. One score per site, with weights ω_k by the
rounds' precision (`_weights`), therefore has the sampling variance once, and the noise of all rounds together:

    G_j = Σ_k ω_k s̃_jk       mean n_j Σ_k ω_k E[w_k x (p(β) - p_k)]      variance n_j E[w² p(1 - p) x xᵀ], w = Σ ω_k w_k

No slope is linearised: E is over simulated rows (`glm.scoring`), normal with the features' moments in all sites. The
features of one site differ from them. A_jk shows how, as far as noise allows: the mean moves by the difference of A_jk
to the simulated information, times β - φ_k. What noise hides of it is part of the variance, as in `glm.scoring`. So is
a third of what the features change of the bend in the steps from the φ_k: the bend of rows that are all like the mean
one does not depend on their law, and a site whose level is far from the others has a large one. n_j is the number of a
site's rows times the share of complete ones in all sites, unless the site's own noisy count clearly differs: then it is
the count.

`fitted` makes the same likelihood normal about each site's own estimate, which is computed again until it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dca_proto.aggregate import NoisyAggregate
from dca_proto.wording import listed
from inference.errors import DataError
from inference.models.glm.scored_fit import SHARE_LEAST, Scores
from inference.models.glm.scoring import LAW, NoisyScore, Rows, Simulation
from inference.models.linear.closed_form import symmetric
from inference.models.score_regression import WRONG
from inference.models.sites.evidence import Average, Evidence, Posterior, posterior
from inference.problem import Array

AWAY_MAX = 2.0  # of a site's standardised coefficients from the last request, in log odds
RARE, HIDDEN, FEW = 0.1, 4.0, 20.0  # share of a rare class; its rows, in sds of the noise, and alone, below which few
APART_SD, SIZE_LEAST = 0.5, 0.3  # of features' means from their centres, before any sums; least E[w x²]
CLEAR = 4.0  # standard deviations of its noise by which a site's count differs from what is usual
ROWS = 512  # simulated rows, the first of the Sobol points
PASSES, SHORTER, STEP_MAX = 8, 4, 1.0  # of Newton's method about each site's estimate; the largest step
CONVERGED = 0.005  # log odds of the last step


class Released(NamedTuple):
    """The scores of J sites, standardised; float64, a JAX pytree.

    Attributes:
        score: G_j, shape ``(J, p)``. noise: its variance in each coordinate. n: rows, ``(J,)``.
        x: simulated rows, ``(m, p)``. weight: Σ ω_k w_k of each, ``(m,)``. asked: E Σ ω_k w_k x p_k, ``(p,)``.
        slope, shift: what a site's own information adds to the mean, slope β - shift: ``(J, p, p)``, ``(J, p)``.
        information, straight: Σ ω_k A_k and Σ ω_k A_k φ_k of a simulated row: ``(p, p)``, ``(p,)``.
        last: the last φ_k, ``(p,)``.
        middle: the mean simulated row, ``(p,)``. rise, rest: of the score of rows that are all like it, the derivative
            by their log odds, and what is left of its linear part, ``(p,)``.
        hidden: variance that each squared distance from ``last`` adds, ``(J,)``. average: see `average_of`.
    """

    score: Array
    noise: Array
    n: Array
    x: Array
    weight: Array
    asked: Array
    slope: Array
    shift: Array
    information: Array
    straight: Array
    last: Array
    middle: Array
    rise: Array
    rest: Array
    hidden: Array
    average: Average


def released_by(scores: Scores, nodes: Sequence[Sequence[NoisyAggregate]]) -> Released:
    """Return the scores of the sites.

    Args:
        scores: the rounds' sums over all sites. nodes: the releases of each round, of the same sites in order.
    """
    rows, p = scores.rows, len(scores.columns.columns)
    x = rows.x[:ROWS]
    n = np.array([float(node.contributors) for node in nodes[0]])
    parts = [Scores.of(list(of_round)) for of_round in zip(*nodes, strict=True)]
    omega, noise_variance = _weights(scores, parts[0], n)
    asked, slope, shift = np.zeros(p), np.zeros((len(n), p, p)), np.zeros((len(n), p))
    weight, information, hidden = np.zeros(len(x)), np.zeros((p, p)), np.zeros(len(n))
    straight, rise, rest, middle = np.zeros(p), np.zeros(p), np.zeros(p), x.mean(axis=0)
    score = np.zeros((len(n), p))
    complete = _complete(scores, parts, n)
    for k, (share, one) in enumerate(zip(omega, scores.scores, strict=True)):
        theta, shorter, odds, own = _asked(rows, one)
        asked += share * (shorter * odds) @ x / len(x)
        weight += share * shorter
        information += share * own
        straight += share * own @ theta
        at, shared = float(expit(theta @ middle)), share * shorter @ x / len(x)
        rise += at * (1 - at) * shared
        rest += (at - at * (1 - at) * float(theta @ middle)) * shared
        released = np.array([symmetric(part.scores[k].curved) for part in parts]) / one.request.information
        noise = np.array([part.scores[k].noise_variance for part in parts]) / one.request.information**2
        law = (LAW * np.trace(own) / p * complete) ** 2
        known = law / (law + noise)
        differs = known[:, None, None] * (released - complete[:, None, None] * own)
        slope += share * differs
        shift += share * differs @ theta
        hidden += share**2 * known * noise
        score += share * np.array([part.scores[k].score[:p] for part in parts])
    last = scores.scores[-1].request.phi[:-1]
    return Released(
        score, noise_variance, complete, x, weight, asked, slope, shift, information, straight, last,
        middle, rise, rest, hidden,
        average_of(scores),
    )  # fmt: skip


def average_of(scores: Scores) -> Average:
    """Return the features' means over all sites about their centres, as the first round of scores shows them.

    The centres are those of phases, with noise, and of the bulk. At effects of 0 the information is Σ w x xᵀ/4. A
    normal feature moved by m has E[w x] = m E[w x²]. Features of any law may differ from that by a third.
    """
    first, family = scores.scores[0], scores.family
    n = scores.rounds[0].contributors * scores.share
    squares = symmetric(first.curved) / first.request.information
    unit = n * float(family.curvature(first.request.phi, np.eye(1, len(squares)))[0])
    size = np.maximum(np.diag(squares)[1:] / unit, SIZE_LEAST)
    found, noise = squares[0, 1:] / unit / size, first.noise_variance / (first.request.information * unit * size) ** 2
    kept = APART_SD**2 / (APART_SD**2 + noise)
    return Average(kept * found, kept * noise + (WRONG * kept * found) ** 2)


def _weights(scores: Scores, part: Scores, n: Array) -> tuple[Array, Array]:
    """Return ω_k, by the precision of the noise and of a third of the bend from φ_k to the last, and Σ ω_k² σ_k²."""
    rows, last = scores.rows, scores.scores[-1].request.phi[:-1]
    x = rows.x[:ROWS]
    noise, error = np.empty(len(scores.scores)), np.empty(len(scores.scores))
    for k, one in enumerate(scores.scores):
        theta, shorter, odds, own = _asked(rows, one)
        bend = (shorter * (expit(x @ last) - odds)) @ x / len(x) - own @ (last - theta)
        noise[k] = part.scores[k].noise_variance
        error[k] = noise[k] + (WRONG * n.mean()) ** 2 * (bend**2).mean()
    precision = 1 / np.maximum(error, np.finfo(float).tiny)
    omega = precision / precision.sum()
    return omega, np.array(omega**2 @ noise)


class _Asked(NamedTuple):
    """What simulated rows send in a round: φ_k, their factors w_k and p_k, ``(m,)``, and the mean of their A_k."""

    theta: Array
    shorter: Array
    odds: Array
    information: Array


def _asked(rows: Rows, one: NoisyScore) -> _Asked:
    simulation, x, theta = Simulation(rows, one.request, one.request.phi), rows.x[:ROWS], one.request.phi[:-1]
    shorter, odds = 1 / np.maximum(1.0, simulation.norms[:ROWS] / one.request.clip), expit(x @ theta)
    return _Asked(theta, shorter, odds, (x * (shorter * odds * (1 - odds))[:, None]).T @ x / len(x))


def _complete(scores: Scores, parts: Sequence[Scores], n: Array) -> Array:
    """Return each site's number of complete rows, ``(J,)``. Args: n: of all of its rows."""
    usual = n * scores.share
    own, sd = np.array([part.complete[:2] for part in parts]).T
    return np.where(np.abs(own - usual) > CLEAR * sd, np.clip(own, SHARE_LEAST * n, n), usual)


class Moments(NamedTuple):
    """Of G_j at the site's coefficients: what is left of it, the derivative of its mean, and its covariance."""

    left: Array
    slope: Array
    cov: Array


class Expected(NamedTuple):
    """Of sites' scores at their coefficients, as arrays of NumPy or of JAX.

    Attributes:
        odds: of each simulated row, ``(J, m)``. left: of the score, less its mean, ``(J, p)``.
        extra: variance of the noise and of what is not linear, ``(J, p)``.
    """

    odds: Any
    left: Any
    extra: Any


def expected(released: Released, beta: Any, sigmoid: Callable[[Any], Any]) -> Expected:
    """Return what scores are expected to be at coefficients ``(J, p)``, of NumPy or of JAX, with its `sigmoid`."""
    x, w, n = released.x, released.weight, released.n[:, None]
    odds = sigmoid(beta @ x.T)
    mean = (odds * w) @ x / len(x) - released.asked
    step = beta - released.last
    middle = (beta @ released.middle)[:, None]
    of_middle = sigmoid(middle) * (w @ x / len(x)) - middle * released.rise - released.rest
    bent = mean - beta @ released.information.T + released.straight - of_middle
    differs = (released.slope @ beta[..., None])[..., 0] - released.shift
    extra = released.noise + released.hidden[:, None] * (step**2).sum(-1, keepdims=True) + (WRONG * n * bent) ** 2
    return Expected(odds, released.score - n * mean - differs, extra)


def moments(released: Released, beta: Array) -> Moments:
    """Return the moments at coefficients ``(J, p)``; shapes ``(J, p)``, ``(J, p, p)``, ``(J, p, p)``."""
    x, w, n = released.x, released.weight, released.n[:, None]
    found = expected(released, beta, expit)
    rise = found.odds * (1 - found.odds)
    slope = np.einsum("js,si,sk->jik", rise * w, x, x, optimize=True) / len(x)
    cov = n[..., None] * np.einsum("js,si,sk->jik", rise * w**2, x, x, optimize=True) / len(x)
    cov = cov + found.extra[..., None] * np.eye(beta.shape[1])
    return Moments(found.left, n[..., None] * slope + released.slope, cov)


def evidence_at(released: Released, beta: Array) -> Evidence:
    """Return the normal evidence about these coefficients of the sites, ``(J, p)``."""
    left, slope, cov = moments(released, beta)
    weighted = np.swapaxes(np.linalg.solve(cov, slope), 1, 2)
    return Evidence((weighted @ (left[..., None] + slope @ beta[..., None]))[..., 0], weighted @ slope)


def fitted(released: Released, mean_sd: Array, tau_sd: Array) -> Posterior:
    """Return the posterior on a grid. For the arguments and errors see `sites.evidence.posterior`."""
    beta = np.tile(released.last, (len(released.n), 1))
    for count in range(PASSES + SHORTER):
        typical = posterior(evidence_at(released, beta), mean_sd, tau_sd).typical()
        most = STEP_MAX / 2 ** max(0, count - PASSES)  # no cycles
        step = typical.effect - beta
        beta = beta + np.clip(step, -most, most)
        if np.abs(step).max() < CONVERGED:
            break
    return posterior(evidence_at(released, beta), mean_sd, tau_sd)


def about_sites(released: Released, effect: Array, labels: Sequence[str]) -> list[str]:
    """Return doubts about sites: too far from where the last round asked, or with few rows of one of the classes.

    Args:
        effect: the sites' coefficients, ``(J, p)``.
    """
    away = np.abs(effect - released.last).max(axis=1) > AWAY_MAX
    odds = expit(effect @ released.x.T)
    rarer = np.minimum(odds, 1 - odds) @ released.weight / len(released.x)
    least = max(HIDDEN * float(np.sqrt(released.noise)), FEW)
    rare = (rarer < RARE * released.weight.mean()) & (released.n * rarer < least)
    notes = []
    if away.any():
        notes.append(
            f"{_named(labels, away)} differ from where the last round asked by more than {AWAY_MAX:g} (log odds), too "
            "far for its approximation: effects may lie beyond their intervals, most likely farther from 0, and so may "
            "these sites; see if the others agree without them"
        )
    if rare.any():
        notes.append(
            f"one of the classes is rare in {_named(labels, rare)}, and noise hides how rare, or there are few rows: "
            "levels there, and the mean of sites, may lie beyond their intervals, most likely farther from 0; raise "
            "epsilon, or ask for more rows"
        )
    return notes


def _named(labels: Sequence[str], which: NDArray[np.bool_]) -> str:
    return listed([label for label, one in zip(labels, which, strict=True) if one])


def matched(rounds: Sequence[NoisyAggregate]) -> list[list[NoisyAggregate]]:
    """Return the releases of the sites that took part in all rounds, in the same order.

    Raises:
        DataError: fewer than two sites took part in all of them.
    """
    by_site = [{node.client: node for node in one.nodes} for one in rounds]
    everywhere = [client for client in by_site[0] if all(client in known for known in by_site)]
    if len(everywhere) < 2:
        raise DataError(f"{len(everywhere)} sites released in all rounds; a model of sites needs two or more")
    return [[known[client] for client in everywhere] for known in by_site]
