"""Clipped gradients of a generalised linear model's log-likelihood at public parameters θ.

For one row with features x (with an ``intercept``, the constant 1 comes first) and target y:

    normal      ∇ = (y - xᵀθ) x                    of -½(y - xᵀθ)²
    bernoulli   ∇ = (y - 1/(1 + exp(-xᵀθ))) x      of y·xᵀθ - ln(1 + exp(xᵀθ)),  y in {0, 1}
    poisson     ∇ = (y - λ)/(1 + κλ) x             of y·ln λ - (y + 1/κ) ln(1 + κλ),  λ = exp(xᵀθ),  y in {0, 1, 2, ...}
    student     ∇ = (w r x, w r² - 1)              of -½(ν + 1) ln(1 + r²/ν) - ln σ,  r = (y - xᵀθ)/σ,
                w = (ν + 1)/(ν + r²)               with respect to (θ/σ, ln σ); ν degrees of freedom

κ is the ``overdispersion``. At 0 the counts are Poisson, with density y·xᵀθ - λ; above 0 they are negative binomial,
with variance λ + κλ². The gradient's mean is zero at the true θ whatever κ is.

Student's gradient is bounded if x is, without a clip: |w r| <= (ν + 1)/(2√ν) and -1 <= w r² - 1 <= ν.

**Weights.** A clip shortens rows whose target is far from its prediction more than others, and so distorts a
likelihood. ``by_features`` instead shortens each row by

    min(1, C/√(a² |x|² + b² + |v q x xᵀ|²)),    a >= |residual|, b >= |w r² - 1|

so that the clip changes nothing. That factor depends on features alone: the score's mean stays zero at the true
parameters, whatever the law of the features is (Mallows' weights). It needs bounded residuals: a = max(p, 1 - p) of
``bernoulli``, and a = (ν + 1)/(2√ν), b = max(1, ν) of ``student``.

**Information.** With a weight v > 0, each row's gradient is followed by v times the terms for Newton's method: the
unique terms of q x xᵀ, upper triangle row by row. Here q is the expected curvature -∂²/∂(xᵀθ)² of the row's log
density: 1 for ``normal``, p(1 - p), λ/(1 + κλ), and 1 for ``student``, whose curvature (ν + 1)/((ν + 3)σ²) is the same
for all rows. With a ``dispersion`` weight, ``poisson`` adds that weight times r²/(r² + λ), r = y - λ, as the last
coordinate: it measures how much counts vary beyond Poisson's law. The whole vector is clipped as one.

**Curves.** With ``curves``, further coordinates show whether the predictor is curved in a feature. Let x have the
constant 1 first, f_j = √(1 + x_j²) - 1 of each other feature, and s the gradient at the constant. The row goes on with
s f_j; v q f_j x_i for each j and all i; and v q f_j². The norm above then has |x|² + |f|² in place of |x|², and these
terms. f_j grows as |x_j|, so a row far out gets no more than √2 times as long by it.

`model_gradient` has the clipping and the proof of its sensitivity. Nothing overflows: values are clamped to public
bounds first, and parameters for which a gradient could exceed 1e100 are refused. Each coordinate of a row is computed
from that row alone, always in the same order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dca_proto.errors import UsageError
from dca_proto.statistics.base import Proof, Statistic, register
from dca_proto.statistics.counting import Counting
from dca_proto.statistics.model_gradient import GRADIENT_MAX, ModelGradient
from dca_proto.statistics.scaled import ball_limit, example_box, example_ends
from dca_proto.statistics.sensitivity import Sensitivity
from dca_proto.statistics.value_range import Squares, ValueRange, unique_places

NORMAL, BERNOULLI, POISSON, STUDENT = FAMILIES = ("normal", "bernoulli", "poisson", "student")
BOUNDED = (BERNOULLI, STUDENT)

EXPONENT_MAX = 350.0  # exp of twice this is finite, and above the largest gradient allowed


@register
class Gradient(Counting, ModelGradient, frozen=True, kw_only=True):
    """The sum of rows' clipped gradients, in units of scaled columns.

    Attributes:
        columns: the features, and the target last.
        theta: θ, one value per feature, the intercept's first if there is one; in units of the scaled columns. For
            ``student``, ln σ comes last.
        clip: the ball's radius, in units of the gradient.
        family: one of `FAMILIES`. For ``bernoulli``, y is 1 if the scaled target is above 0, else 0; so targets 0 and 1
            may be left as they are or be mapped to -1 and 1. For ``poisson``, y is the scaled target: a centre of 0 and
            a scale of 1 leave counts as they are.
        intercept: put a constant feature of 1 first. degrees: ν of ``student``, above 0.
        information: v, above 0, or 0 for gradients alone. dispersion: the weight of the dispersion term, above 0, or 0
            without it. overdispersion: κ of ``poisson``, at least 0. by_features: shorten rows by their features alone.
        curves: whether to send the scores of curves; with an intercept and ``information`` alone.
        count_weight: of a count of complete rows, the last coordinate; 0 leaves it out.
    """

    name = "gradient"
    proofs = (
        Proof(
            "clipped gradient, C = ⌊clip·2^f⌋, of a built-in or a user's model",
            "2C",
            "2⌊√d·C⌋",
            "`test_gradient.py`, `test_model_gradient.py`",
            proof="`statistics/model_gradient.py`; NaN, infinities and rows on which a model fails count as zero",
        ),
    )

    family: str = NORMAL
    intercept: bool = False
    degrees: float = 4.0
    information: float = 0.0
    dispersion: float = 0.0
    overdispersion: float = 0.0
    by_features: bool = False
    curves: bool = False
    count_weight: float = 0.0

    @classmethod
    def examples(cls) -> tuple[Statistic, ...]:
        box = example_box(1.0, 3.0, 2.0)
        counts: dict[str, Any] = {"family": POISSON, "information": 1.0, "dispersion": 2.0, "overdispersion": 0.5}
        robust: dict[str, Any] = {"family": STUDENT, "information": 1.0, "by_features": True, "degrees": 3.0}
        return (
            cls(**box, theta=(0.5, -1.0), clip=2.0),
            cls(**box, theta=(0.5, -1.0), clip=2.0, within=example_ends(3)),
            cls(**box, theta=(0.2, 0.5, -1.0), clip=2.0, intercept=True, count_weight=3.0),
            cls(**box, theta=(0.5, -1.0, 0.2), clip=3.0, family=BERNOULLI, intercept=True, information=2.0),
            cls(**box, theta=(0.1, -0.2), clip=9.0, **counts),
            cls(**box, theta=(0.1, -0.2, 0.3), clip=4.0, **robust),
            cls(**box, theta=(0.2, 0.1, -0.2, 0.3), clip=4.0, intercept=True, curves=True, **robust),
            cls(**box, theta=(0.2, 0.1, -0.2), clip=9.0, intercept=True, curves=True, **counts),
        )

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise UsageError(f"family {self.family[:64]!r} is unknown; use one of {', '.join(FAMILIES)}")
        if not 0 < self.degrees < math.inf:
            raise UsageError(f"degrees is {self.degrees:g}; give a finite number above 0")
        for weight in ("information", "dispersion", "overdispersion"):
            if not 0 <= (value := getattr(self, weight)) <= GRADIENT_MAX:
                raise UsageError(f"{weight} is {value:g}; give a number from 0 to {GRADIENT_MAX:g}")
            if value and weight != "information" and self.family != POISSON:
                raise UsageError(f"{weight} is {value:g}; only {POISSON!r} takes it, so leave it out")
        self._check_rows()
        features = len(self.columns) - 1 + self.intercept
        if self.columns and features < 1:
            raise UsageError("no feature: name the features in columns, then the target, or ask for an intercept")
        scale = int(self.family == STUDENT)
        if self.columns and len(self.theta) != features + scale:
            of_scale = " and one for ln σ" if scale else ""
            raise UsageError(f"theta has {len(self.theta)} values for {features} features; give one for each{of_scale}")
        super().__post_init__()
        if not (largest := self._largest()) < GRADIENT_MAX:
            raise UsageError(
                f"a gradient can reach {largest:.3g}, expected below {GRADIENT_MAX:g}; lower bound or theta"
            )

    def _check_rows(self) -> None:
        if self.by_features and self.family not in BOUNDED:
            raise UsageError(f"residuals of {self.family!r} have no bound; use by_features with {' or '.join(BOUNDED)}")
        if self.curves and not (self.intercept and self.information):
            raise UsageError("curves need an intercept and the information; ask for both, or leave curves out")

    @property
    def plain_dimension(self) -> int:
        d = len(self.columns) - 1 + self.intercept
        before = len(self.theta) + (d * (d + 1) // 2 if self.information else 0) + bool(self.dispersion)
        return before + self.curves * (d - 1) * (d + 2)

    def plain_labels(self) -> tuple[str, ...]:
        features = ("1", *self.columns[:-1]) if self.intercept else self.columns[:-1]
        labels = [f"gradient at {feature}" for feature in (*features, "ln σ")[: len(self.theta)]]
        if self.information:
            labels += [f"information {a}·{b}" for place, a in enumerate(features) for b in features[place:]]
        labels += ["dispersion"] * bool(self.dispersion)
        if self.curves:
            curved = [f"curve of {feature}" for feature in features[1:]]
            labels += [f"gradient at {curve}" for curve in curved]
            labels += [f"information {curve}·{feature}" for curve in curved for feature in features]
            labels += [f"information {curve}·{curve}" for curve in curved]
        return tuple(labels)

    def gradient(self, theta: NDArray[np.float64], rows: NDArray[np.float64]) -> NDArray[np.float64]:
        x, y = rows[:, :-1], rows[:, -1]
        if self.intercept:
            x = np.concatenate((np.ones((len(x), 1)), x), axis=1)
        predictor = (x * theta[: x.shape[1]]).sum(axis=1)
        if self.family == STUDENT:
            r = (y - predictor) * math.exp(-theta[-1])
            weighted = (self.degrees + 1) / (self.degrees + r * r) * r
            gradient = np.concatenate([weighted[:, None] * x, (weighted * r - 1)[:, None]], axis=1)
        else:
            if self.family == BERNOULLI:
                residual = (y > 0) - _sigmoid(predictor)
            else:
                residual = y - (np.exp(predictor) if self.family == POISSON else predictor)
            gradient = residual[:, None] * x
            if self.overdispersion:
                gradient /= (1 + self.overdispersion * np.exp(predictor))[:, None]
        parts = [gradient]
        if self.information:
            curved = self.information * self._curvature(predictor)[:, None] * x
            parts.append(np.concatenate([curved[:, i : i + 1] * x[:, i:] for i in range(x.shape[1])], axis=1))
        if self.dispersion:
            mean = np.exp(predictor)
            parts.append((self.dispersion * (y - mean) ** 2 / ((y - mean) ** 2 + mean))[:, None])
        f = curves_of(x[:, 1:]) if self.curves else np.zeros((len(x), 0))
        if self.curves:
            weighted = self.information * self._curvature(predictor)[:, None]
            crossed = (f[:, :, None] * (weighted * x)[:, None, :]).reshape(len(x), -1)
            parts += [gradient[:, :1] * f, crossed, weighted * f**2]
        if self.by_features:
            residual_max: NDArray[np.float64] | float = (self.degrees + 1) / (2 * math.sqrt(self.degrees))
            if self.family == BERNOULLI:
                residual_max = _sigmoid(np.abs(predictor))
            reach = residual_max * np.sqrt((x**2).sum(axis=1) + (f**2).sum(axis=1))
            others = [max(1.0, self.degrees)] if self.family == STUDENT else []
            lengths = [np.linalg.norm(part, axis=1) for part in (*parts[1:2], *parts[3:])]
            norm = np.sqrt(sum((length**2 for length in (*lengths, *others)), reach**2))
            parts = [part * np.minimum(1.0, self.clip / norm)[:, None] for part in parts]
        return np.concatenate(parts, axis=1)

    def lengths(self, fraction_bits: int) -> tuple[int, int]:
        square = ball_limit("clip", self.clip, fraction_bits) ** 2
        return math.isqrt(self.plain_dimension * square), square

    def plain_sensitivity(self, fraction_bits: int) -> Sensitivity:
        return ModelGradient.row_sensitivity(self, fraction_bits)

    def plain_values(self, rows: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
        return ModelGradient.evaluate(self, rows, fraction_bits)

    def estimate(self, value: NDArray[np.float64], contributors: int) -> NDArray[np.float64]:
        sums, rows = self.sums_and_rows(value, contributors)
        return np.append(sums, [rows] * self.counts)

    def plain_range(self, fraction_bits: int) -> ValueRange:
        """A ball; the information is a sum of squares, and the dispersion is at least zero and at most its weight."""
        ball = ModelGradient.value_range(self, fraction_bits)
        low, high, first, squares = ball.low.copy(), ball.high.copy(), len(self.theta), None
        if self.information:
            d = len(self.columns) - 1 + self.intercept
            places = unique_places(d, first)
            low[places.diagonal()] = 0.0
            squares = Squares("terms of the information", places[None], np.ones((1, d, d)), rounding=1.0)
            first += d * (d + 1) // 2
        if self.dispersion:
            low[first], high[first] = 0.0, min(high[first], math.ldexp(self.dispersion, fraction_bits))
        if self.curves:
            begin = first + bool(self.dispersion) + d - 1
            low[begin : begin + (d - 1) * d : d] = 0.0
            low[begin + (d - 1) * d :] = 0.0
        return ValueRange(low, high, ball.length, squares=squares)

    def _curvature(self, predictor: NDArray[np.float64]) -> NDArray[np.float64]:
        """q of each row."""
        if self.family == BERNOULLI:
            return _sigmoid(predictor) * _sigmoid(-predictor)
        if self.family == POISSON:
            mean = np.exp(predictor)
            return np.asarray(mean / (1 + self.overdispersion * mean))
        return np.ones_like(predictor)

    def _largest(self) -> float:
        """Return an upper bound of every coordinate of any row's gradient, and of all intermediate results."""
        *bounds, target = self.bound
        if self.intercept:
            bounds.insert(0, 1.0)
        predictor = sum(abs(theta) * bound for theta, bound in zip(self.theta, bounds, strict=False))
        if self.family == STUDENT:  # a residual is squared on the way
            residual = (target + predictor) * math.exp(min(abs(self.theta[-1]), EXPONENT_MAX))
            residual *= residual
        else:
            residual = target + 1.0 + (math.exp(min(predictor, EXPONENT_MAX)) if self.family == POISSON else predictor)
        largest = residual * max(1.0, *bounds)
        weight = max(self.information, self.dispersion)
        return max(largest, weight * largest * largest) if weight else largest


def curves_of(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return f of features, of the same shape: √(1 + x²) - 1."""
    return np.asarray(np.sqrt(1 + x**2) - 1)


def _sigmoid(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 1/(1 + exp(-v)) for any finite values, without overflow."""
    small = np.exp(-np.abs(values))  # underflows to 0 at worst
    return np.where(values >= 0, 1.0, small) / (1.0 + small)
