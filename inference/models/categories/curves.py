"""Whether the log odds of categories are curved in a feature, from the last round's scores of curves.

The last round sends scores as if the curves u f_j were further features with effects of 0 (`CategoryScore.curves`). Let
T be the score of φ and U that of the curves, and D the derivative of both by φ and by the curves' effects γ. With
L = D_Uφ D_Tφ⁻¹ the score U - L T does not change with φ to first order. Its mean is (D_Uγ - L D_Tγ) γ. One effect at a
time is estimated, of each predictor's own contrast; `inference.models.glm.curves` has what follows from it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from inference.models.categories.model import Model
from inference.models.categories.scoring import Part, Released, Rows
from inference.models.glm.curves import Curvature, Sums
from inference.models.score_regression import Normal, positive
from inference.problem import Array


def curvature(last: Released, rows: Rows, n: float, phi: Normal, model: Model) -> Curvature | None:
    """Return the curvature from the last round, in the order of `Model.effects`; None if that did not ask for it.

    Args:
        n: the number of rows. phi: the posterior.
    """
    if last.whole is None:
        return None
    wide, places, weight = model.with_curves, model.among_curves, last.request.curves
    own, curves = places.own, places.curves

    def widened(of: Array) -> Array:
        found = np.zeros(wide.basis.shape[1])
        found[own] = of
        return found

    asked, drawn = widened(model.phi(last.request.theta)), widened(phi.mean)
    request = last.request._replace(theta=wide.theta(asked))
    part = Part(wide, replace(last, request=request, score=last.whole[0], information=last.whole[1]), rows, weight)
    step, slope = drawn - asked, part.slope
    line = np.linalg.solve(slope[np.ix_(own, own)].T, slope[np.ix_(curves, own)].T).T
    left = np.diag(slope[np.ix_(curves, curves)] - line @ slope[np.ix_(own, curves)])
    bend = part.simulation.moments(request, wide.theta(drawn))[0] - part.bend_at_rest @ step
    bent, score = (one[curves] - line @ one[own] for one in (bend, part.score))
    of_step, of_terms = part.doubt @ (wide.basis @ step) ** 2, np.diag(part.doubt @ wide.basis**2)
    noise = last.noise + of_step
    effects = own[model.effects]
    simulated = np.diag(part.bend_at_rest)[effects]
    spread = np.diag(part.simulation.cov(request))[effects] / np.maximum(simulated, np.finfo(float).tiny)
    inside = slope[np.ix_(own, own)]
    return Sums(
        score=(score - bent) / weight,
        noise=(noise[curves] + line**2 @ noise[own]) / weight**2,
        left=left / weight**2,
        doubt=np.sqrt(of_terms[curves] + line**2 @ of_terms[own]) / weight**2,
        own=slope[effects, effects],
        spread=spread,
        bent=bent / weight,
        far=float(step[own] @ positive(inside) @ step[own]),
        lost=np.tile(_lost(part, model.features), effects.size // model.features),
    ).curvature(n)


def _lost(part: Part, features: int) -> Array:
    """Return the share that q |x_j|³ loses by the weights in simulated rows, ``(d,)``."""
    at, x = part.simulation.at, part.simulation.x[:, :features]
    q = (at.each * at.signs**2).sum(axis=1) if at.below is not None else 1 - (at.each**2).sum(axis=1)
    cubes = q[:, None] * np.abs(x) ** 3
    kept = part.simulation.shorter(part.released.request)[:, None] * cubes
    return np.asarray(1 - kept.mean(axis=0) / cubes.mean(axis=0))
