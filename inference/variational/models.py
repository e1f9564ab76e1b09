"""Models for variational inference: a statistic of clipped gradients, and the trainer's own prior.

    ℓ(θ) = w Σᵢ ln p(zᵢ | θ)        w = 1, or λ for a regression with residual variance λ⁻¹
    g    = w ∇Σᵢ ln p(zᵢ | θ) + ∇ln p(θ)

Features are standardised to about unit variance, so that one prior and one clipping norm suit all of θ. A user's own
model is a statistic that every participant has registered (`dca_proto.statistics.model_gradient`), since a round
carries a name and numbers, never code. Its prior, the gradient of any log density, stays with the trainer. The model
sees the target in its own units, within its public bounds: a count is a count.
Without JAX, a `ModelGradient` has a ``gradient``. Give a clip with it, in units of its gradients; the planned clip is
for logistic regression. `docs/tutorials/model.md` has a whole program.

**Clipping** changes what is learned, in a way that is known for generalised linear models. The gradient of one row is
its residual times x, so clipping its norm at C bounds the residual to ±C/|x|. The objective stays concave: a likelihood
that bounds the influence of one row, as in robust regression. Its curvature is lower, and its maximum moves: log odds
become more extreme. `clipping` computes by how much, and plans C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dca_proto.aggregate import RoundRequest
from inference.columns import COUNT_WEIGHT, Standardisation
from inference.errors import DataError, unknown
from inference.jobs.settings import require_positive
from inference.locate import Located
from inference.problem import Array, Schema

PriorGradient = Callable[[Array], Array]

BERNOULLI, NORMAL = "bernoulli", "normal"
GRADIENT = "gradient"  # the built-in statistic
CURVATURE = {BERNOULLI: 0.1, NORMAL: 1.0}  # p(1 - p) of a row is 1/4 at most
PRIOR_SD = 2.0
INTERCEPT = "intercept"
OWN_UNITS, STANDARDISED, CLASSES = TARGETS = ("own-units", "standardised", "classes")


@dataclass(frozen=True, eq=False)
class Model:
    """A model of rows of standardised columns.

    Attributes:
        statistic: of the clients' clipped gradients, with the parameters ``theta`` and ``clip`` and those of scaled
            columns.
        names: of θ's coordinates. parameters: further ones of the statistic.
        prior_gradient: ∇ln p(θ), from and to shape ``(d,)``. prior_sd: of that prior, if it is normal about 0 and the
            same for all.
        weight: w. curvature: a rough guess of -∂²/∂θ_j² of one row's log density, to initialise s.
        target: the clients' standardisation of the target: `OWN_UNITS`, `STANDARDISED` by its estimated mean and
            standard deviation, or `CLASSES`, its bounds mapped to ±1.
    """

    statistic: str
    names: tuple[str, ...]
    prior_gradient: PriorGradient
    parameters: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 1.0
    curvature: float = 1.0
    prior_sd: float | None = None
    target: str = OWN_UNITS

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise unknown("target", self.target, None, TARGETS)
        if not self.names or len(set(self.names)) < len(self.names):
            raise DataError(f"parameters of the model: {', '.join(self.names) or 'none'}; name each once, one at least")

    @property
    def dimension(self) -> int:
        return len(self.names)

    @property
    def prior_precision(self) -> float:
        """The prior precision of each of θ, or a usual one."""
        return (self.prior_sd or PRIOR_SD) ** -2

    def columns(self, schema: Schema, located: Located, bound: float) -> Standardisation:
        """Return the clients' standardisation after the first round; see `Located.standardisation` for arguments."""
        columns = located.standardisation(schema, bound)
        return columns.with_own_target(schema.bounds[schema.target]) if self.target == OWN_UNITS else columns

    def request(self, theta: Array, columns: Standardisation, clip: float, share: float, batch: int) -> RoundRequest:
        """Return the request for the sum of clipped gradients at θ; the built-in one counts complete rows."""
        parameters = columns.parameters() | dict(self.parameters)
        parameters |= {"theta": [float(value) for value in theta], "clip": clip}
        if self.statistic == GRADIENT:  # a statistic of one's own need not count
            parameters["count_weight"] = COUNT_WEIGHT * clip
        return RoundRequest(self.statistic, parameters, budget_share=share, batch=batch)


def gaussian_prior(sd: float) -> PriorGradient:
    """Return ∇ln p of θ ~ N(0, sd² I). Raises `DataError` if sd is not above 0."""
    require_positive("prior_sd", sd)
    return lambda theta: -theta / sd**2


def generalised_linear(
    schema: Schema,
    family: str,
    *,
    prior_sd: float = PRIOR_SD,
    prior_gradient: PriorGradient | None = None,
    residual_variance: float = 1.0,
) -> Model:
    """Return a logistic (``bernoulli``) or linear (``normal``) regression of the schema's target, with intercept.

    Args:
        prior_sd: of each of θ, the intercept first, in standardised units. prior_gradient: ∇ln p instead of that.
        residual_variance: λ⁻¹ of ``normal``, as a part of the target's variance. 1, the largest possible value, widens
            the posterior if the features explain much.

    Raises:
        DataError: an unknown family, or a number that is not above 0.
    """
    if family not in (BERNOULLI, NORMAL):
        raise unknown("family", family, "generalised linear models", (BERNOULLI, NORMAL))
    require_positive("residual_variance", residual_variance)
    return Model(
        statistic=GRADIENT,
        names=(INTERCEPT, *schema.features),
        prior_gradient=prior_gradient or gaussian_prior(prior_sd),
        parameters={"family": family, "intercept": True},
        weight=1 / residual_variance if family == NORMAL else 1.0,
        curvature=CURVATURE[family],
        prior_sd=None if prior_gradient else prior_sd,
        target=STANDARDISED if family == NORMAL else CLASSES,
    )
