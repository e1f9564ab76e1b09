"""The learning job of a conjugate model, of one round, and the models by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dca_proto.aggregate import NoisyAggregate
from inference.bounds import Interval
from inference.draws import CHAINS, DRAWS, attributes
from inference.errors import DataError, unknown
from inference.models.conjugate.categorical import Categorical
from inference.models.conjugate.family import NOISE_AWARE, Family, FamilyResult, fitted
from inference.models.conjugate.gaussian import Gaussian
from inference.models.conjugate.scalar import Bernoulli, Exponential, Poisson
from inference.rounds import Job

FAMILIES: Mapping[str, type[Family]] = {
    model.name: model for model in (Bernoulli, Categorical, Exponential, Gaussian, Poisson)
}


def family(name: str, column: str, interval: Interval, **prior: Any) -> Family:
    """The model of that name over a column with public bounds.

    Args:
        name: one of `FAMILIES`. column, interval: what it is of. prior: the parameters of its conjugate prior; those
            that are left out are weak, and follow from the bounds where they have a unit.

    Raises:
        DataError: an unknown name or prior parameter, or one out of range, or bounds that are none for the model.
    """
    if name not in FAMILIES:
        raise unknown("model", name, "the conjugate models", FAMILIES)
    model = FAMILIES[name]
    known = tuple(model.__dataclass_fields__)[2:]
    for parameter in prior:
        if parameter not in known:
            raise unknown("prior parameter", parameter, f"model {name!r}", known)
    try:
        return model(column, interval, **prior)
    except TypeError as error:
        raise DataError(f"model {name!r}: {error}; give numbers as prior parameters") from None


def family_job(
    model: Family,
    *,
    rng: np.random.Generator,
    method: str = NOISE_AWARE,
    chains: int = CHAINS,
    draws: int = DRAWS,
    private: bool = True,
) -> Job[FamilyResult]:
    """The job: one round with the whole budget, then the posterior.

    Args:
        model: what to learn. rng: for the posterior's draws; nothing private depends on it.
        method: one of `METHODS`. chains, draws: how many of each.
        private: False where the bounds were read from the data, so that no epsilon may be claimed.
    """
    aggregate = yield model.request()
    return posterior_of(model, aggregate, rng=rng, method=method, chains=chains, draws=draws, private=private)


def posterior_of(
    model: Family,
    aggregate: NoisyAggregate,
    *,
    rng: np.random.Generator,
    method: str = NOISE_AWARE,
    chains: int = CHAINS,
    draws: int = DRAWS,
    private: bool = True,
) -> FamilyResult:
    """The posterior of what one round released, under this model's prior: another prior costs nothing.

    Args:
        aggregate: of `Family.request`. Others as of `family_job`.
    """
    attrs, claimed = attributes(aggregate), private and aggregate.private
    if not claimed:
        attrs |= {"private": False, "epsilon": None, "delta": None, "mu": None}
    return fitted(
        model,
        model.release(aggregate),
        rng=rng,
        method=method,
        chains=chains,
        draws=draws,
        private=claimed,
        attrs=attrs,
    )
