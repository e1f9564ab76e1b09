"""The coefficients' normal prior, in units in which columns have a standard deviation of 1.

    β ~ N(0, g λ₀⁻¹),   λ₀ = d/R²,   R² = 1/2,   g in 1/4, 1, 4, 16 with a probability of a quarter each

At g = 1 the d features explain half of the target's variance on average. The size of effects is unknown beforehand, so
the scale g has a prior and is learned.

**The mean** is the posterior mean over all four scales. Small scales help if noise is large: on red wine at ε = 1 the
test error is 1.07 times that of least squares, and 1.13 times without the two small scales.

**The spread** comes from the scales 4 and 16 alone, about that mean:

    Cov = Σ_g w_g [ C_g + (m_g - m)(m_g - m)ᵀ ],   w_g proportional to the evidence of g = 4, 16

with C_g and m_g the covariance and mean under g, and m the mean over all scales. Noise can hide opposite effects of
nearly collinear features; the evidence then favours small scales. For correlations of 0.95 and coefficients 1, -0.7 and
0.3, 90 % intervals from all scales covered 66 % in 500-row releases at ε = 1, and 37 % for the worst coefficient. From
the two wide scales they cover 90 % and 83 %. They are wider than needed if effects are as small as g = 1 expects.

A given prior precision is used as it is, without scales.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from inference.errors import DataError
from inference.models.linear.closed_form import REPAIR, Posterior, SufficientStatistics, fitted, posterior
from inference.problem import Array

PRIOR_R2 = 0.5
SCALES = (0.25, 1.0, 4.0, 16.0)
WIDE = slice(2, None)  # the scales that determine the spread


def prior_precision(features: int) -> Array:
    """Return λ₀ of the intercept and each slope, for columns in standard deviations, shape ``(d + 1,)``."""
    return np.array([1.0] + [features / PRIOR_R2] * features)


def fitted_to(
    statistics: SufficientStatistics,
    features: int,
    given: ArrayLike | None = None,
    residual_variance: ArrayLike | None = None,
    *,
    repair: str = REPAIR,
    base: ArrayLike | None = None,
) -> Posterior:
    """Return the posterior under a given prior, or under unknown scales with the spread of the wide ones.

    Args:
        statistics: of the rows. features: d, without the constant. residual_variance, repair: as for
            `closed_form.posterior`.
        given: λ₀ of each slope, broadcastable to ``(d,)``; None learns its scale.
        base: λ₀ of all m coefficients at g = 1; None: columns have a standard deviation of 1.

    Raises:
        DataError: ``given`` is negative, not finite, or does not match d slopes.
    """
    precision = np.array(prior_precision(features)[-statistics.xy.shape[-1] :] if base is None else base)
    if given is not None:
        slopes = np.asarray(given, float)
        if slopes.shape not in ((), (features,)) or not np.all(np.isfinite(slopes) & (slopes >= 0)):
            raise DataError(
                f"prior_precision is {given}; expected a number of at least 0, or one for each of {features} features"
            )
        precision[-features:] = slopes
        return posterior(statistics, precision, residual_variance, repair=repair)
    precisions = [np.r_[precision[:-features], precision[-features:] / scale] for scale in SCALES]
    plugged = [fitted(statistics, one, residual_variance, repair) for one in precisions]
    fits, evidence = [one.posterior() for one in plugged], np.array([one.log_evidence() for one in plugged])
    weights, wide = softmax(evidence), softmax(evidence[WIDE])
    means = np.array([fit.mean for fit in fits])
    mean = weights @ means
    off = means[WIDE] - mean
    cov = np.tensordot(wide, np.array([fit.cov for fit in fits[WIDE]]), 1) + off.T @ (wide[:, None] * off)
    residual = weights @ np.array([fit.residual_variance for fit in fits])
    return Posterior(mean, cov, np.asarray(residual), np.mean([1 / one for one in precisions[WIDE]], axis=0))
