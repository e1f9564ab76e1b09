"""A posterior's draws as ArviZ's data. ArviZ is optional: only this module imports it, when a function is called.

Arrays have the shape ``(chain, draw, ...)``. Attributes state the provenance of the draws (`attributes`); netCDF stores
them as numbers and texts. ArviZ also measures whether chains have mixed (`mixing`); `about_mixing` turns that into
warnings.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dca_proto.aggregate import NoisyAggregate
from dca_proto.privacy import accounting
from dca_proto.wording import to_install
from inference.errors import DataError
from inference.problem import Array, Schema

CHAINS, DRAWS = 4, 1000  # defaults
MIXING_DRAWS_MIN = 4  # draws per chain that ArviZ needs
R_HAT_MAX, EFFECTIVE_DRAWS_MIN = 1.01, 400  # limits for a warning (Vehtari et al. 2021)
R_HAT_REQUIRED = 1.1  # from here on, an error
ADVICE = "raise the settings warmup and draws"
ACCEPT = "set require_mixed to false to take these draws"
TAILS = (0.05, 0.95)  # the quantiles for effective draws in the tails
InferenceData: TypeAlias = Any
"""`arviz.InferenceData`, or from ArviZ 1 on `xarray.DataTree`; neither can be named without importing it."""


def inference_data(
    posterior: Mapping[str, Array],
    *,
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    attrs: Mapping[str, object] | None = None,
    posterior_predictive: Mapping[str, Array] | None = None,
    prior: Mapping[str, Array] | None = None,
    warmup_posterior: Mapping[str, Array] | None = None,
    sample_stats: Mapping[str, Array] | None = None,
) -> InferenceData:
    """Return draws, with names for their axes, as ArviZ's common type.

    Args:
        posterior: by parameter, shape ``(chain, draw, ...)``; all with the same chains and draws.
        dims: names of each parameter's axes after the first two. coords: labels along each named axis.
        attrs: provenance of the draws (`attributes`), attached to the whole and to the posterior. Truth values become
            0 and 1, None is left out, and the library's version is added.
        posterior_predictive: draws of predicted values, like `posterior`. prior: draws of parameters from their prior.
        warmup_posterior: draws from the chains' warm-up, kept as a separate group.
        sample_stats: figures about each chain, such as its acceptance rate, shape ``(chain,)``.

    Raises:
        DataError: ArviZ is not installed, or the arrays' first two axes differ.
    """
    if not posterior:
        raise DataError("no draws of any parameter; give at least one array of shape (chain, draw, ...)")
    shapes = {name: np.shape(array)[:2] for name, array in posterior.items()}
    if len(set(shapes.values())) > 1 or any(len(shape) < 2 for shape in shapes.values()):
        found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise DataError(f"chains and draws differ: {found}; give arrays of shape (chain, draw, ...), the same for all")
    arviz = require_arviz()
    given: dict[str, object] = {"inference_library": "dca-proto", "inference_library_version": _version()}
    known = {name: value for name, value in (attrs or {}).items() if value is not None}
    given |= {name: int(value) if isinstance(value, bool | np.bool_) else value for name, value in known.items()}
    groups = {"posterior": posterior, "posterior_predictive": posterior_predictive, "prior": prior,
              "warmup_posterior": warmup_posterior}  # fmt: skip
    drawn = {name: dict(group) for name, group in groups.items() if group is not None}
    axes = {name: list(names) for name, names in (dims or {}).items()}
    labels = {name: list(named) for name, named in (coords or {}).items()}
    makes_trees = not str(arviz.__version__).startswith("0.")  # ArviZ 1 makes an `xarray.DataTree`
    if makes_trees:
        data = arviz.from_dict(drawn, dims=axes, coords=labels, attrs={"/": given}, save_warmup=True)
    else:
        data = arviz.from_dict(**drawn, dims=axes, coords=labels, attrs=given, save_warmup=True)
    data.posterior.attrs.update(given)
    if sample_stats:
        chains, stats = {"chain": data.posterior["chain"].values}, dict(sample_stats)
        if makes_trees:
            figures = arviz.dict_to_dataset(stats, sample_dims=["chain"], coords=chains, attrs=given)
            data["sample_stats"] = type(data)(figures)
        else:
            by_chain = {name: ["chain"] for name in stats}
            figures = arviz.dict_to_dataset(stats, default_dims=[], dims=by_chain, coords=chains, attrs=given)
            data.add_groups(sample_stats=figures)
    return data


class Sampling(NamedTuple):
    """Diagnostics of the chains after warm-up.

    Attributes:
        divergences: iterations that failed numerically. acceptance: mean acceptance probability. depth_hits: iterations
            that stopped at the largest tree. step_size: after adaptation. Each of shape ``(chains,)``.
        seconds: duration of sampling, including compilation if it was the first of its kind.
    """

    divergences: NDArray[np.int64]
    acceptance: Array
    depth_hits: NDArray[np.int64]
    step_size: Array
    seconds: float

    @property
    def stats(self) -> dict[str, Array]:
        """The figures of each chain, by ArviZ's names."""
        return {
            "divergences": np.asarray(self.divergences, float),
            "acceptance_rate": self.acceptance,
            "reached_max_tree_depth": np.asarray(self.depth_hits, float),
            "step_size": self.step_size,
        }


def about_chains(sampling: Sampling | None) -> list[str]:
    """Return warnings of iterations that failed or stopped early."""
    if sampling is None:
        return []
    words = []
    diverged, deep = int(sampling.divergences.sum()), int(sampling.depth_hits.sum())
    if diverged:
        words.append(
            f"{diverged} iterations after warm-up diverged, so the draws may miss a part of the posterior; take a "
            "stronger prior, or check that the reports are of this model"
        )
    if deep:
        words.append(
            f"{deep} iterations after warm-up stopped at the largest tree, so the chains move slowly; take a "
            "longer warm-up, or columns in units of similar size"
        )
    return words


class Mixing(NamedTuple):
    """How well the chains agree on one number: R̂ and effective draws, rank-normalised (Vehtari et al. 2021).

    Attributes:
        label: the number's name, such as "theta[bmi]". r_hat: 1 if all chains are alike; infinite if one stands still;
            nan with fewer than 4 draws.
        bulk, tail: effective number of independent draws for the middle, and for the 5 % and 95 % quantiles.
    """

    label: str
    r_hat: float
    bulk: float
    tail: float


def mixing(draws: Mapping[str, Array], labels: Mapping[str, Sequence[str]]) -> list[Mixing]:
    """Return the mixing of each number in draws of shape ``(chain, draw)`` or ``(chain, draw, k)``.

    Args:
        labels: names of the k numbers, for parameters with a third axis; without names, they are numbered from 0.

    Raises:
        DataError: ArviZ is not installed.
    """
    arviz, diagnostics = require_arviz(), []
    for name, array in draws.items():
        columns = [array] if array.ndim == 2 else list(np.moveaxis(array, -1, 0))
        places = labels.get(name) or range(len(columns))
        names = [name] if array.ndim == 2 else [f"{name}[{label}]" for label in places]
        for label, column in zip(names, columns, strict=True):
            if column.shape[1] < MIXING_DRAWS_MIN:
                diagnostics.append(Mixing(label, math.nan, math.nan, math.nan))
            elif np.any(np.ptp(column, axis=1) == 0):
                diagnostics.append(Mixing(label, math.inf, 0.0, 0.0))
            else:
                bulk, tail = arviz.ess(column, method="bulk"), arviz.ess(column, method="tail", prob=TAILS)
                diagnostics.append(Mixing(label, float(arviz.rhat(column)), float(bulk), float(tail)))
    return diagnostics


def check_mixing(diagnostics: Sequence[Mixing], advice: str = f"{ADVICE}, or {ACCEPT}") -> None:
    """Raise `DataError` with advice on what to change if an R̂ is 1.1 or more: the chains disagree.

    Every fit that samples applies this rule and `about_mixing`.
    """
    if any(math.isnan(number.r_hat) for number in diagnostics):
        raise DataError("too few draws to say whether the chains have mixed; set draws to at least 4, better 1000")
    worst = max(diagnostics, key=lambda number: number.r_hat, default=None)
    if worst is not None and not worst.r_hat < R_HAT_REQUIRED:
        raise DataError(
            f"the chains have not mixed: R-hat of {worst.label} is {worst.r_hat:.4g}, required below "
            f"{R_HAT_REQUIRED:g}; {advice}"
        )


def about_mixing(diagnostics: Sequence[Mixing], advice: str = ADVICE) -> list[str]:
    """Return warnings that name the worst number; empty if the chains have mixed."""
    if any(math.isnan(number.r_hat) for number in diagnostics):
        return ["too few draws to say whether the chains have mixed; take at least 4 of each chain, better 1000"]
    unmixed = [number for number in diagnostics if number.r_hat > R_HAT_MAX]
    few = [number for number in diagnostics if min(number.bulk, number.tail) < EFFECTIVE_DRAWS_MIN]
    of_unmixed, of_few = (f", the worst of {len(numbers)}" if len(numbers) > 1 else "" for numbers in (unmixed, few))
    words = []
    if unmixed:
        worst = max(unmixed, key=lambda number: number.r_hat)
        words.append(
            f"chains have not mixed: R-hat of {worst.label} is {worst.r_hat:.4g}{of_unmixed}, expected at most "
            f"{R_HAT_MAX:g}; {advice}"
        )
    if few:
        worst = min(few, key=lambda number: min(number.bulk, number.tail))
        words.append(
            f"few effective draws: {worst.label} has {min(worst.bulk, worst.tail):.0f}{of_few}, expected at least "
            f"{EFFECTIVE_DRAWS_MIN}; means and intervals are rough until there are more draws"
        )
    return words


def all_private(aggregates: Iterable[NoisyAggregate], schema: Schema | None = None) -> bool:
    """Return whether an epsilon may be claimed: all rounds are private, and so are the bounds of the schema, if any."""
    return (schema is None or schema.private) and all(aggregate.private for aggregate in aggregates)


def attributes(
    *aggregates: NoisyAggregate, schema: Schema | None = None, others: Sequence[NoisyAggregate] = ()
) -> dict[str, object]:
    """Return the provenance of a posterior: attributes of the aggregates that it was learned from.

    Epsilon is given only for a single round. The joint cost of several is ``mu`` = √Σμ² (Dong, Roth and Su 2022,
    corollary 3.3), and the job's budget has their epsilon. If a round is not private, nothing is claimed.

    Args:
        schema: of the job, if a job asked: with bounds that were read from the data, nothing is claimed either.
        others: further rounds that must be private.
    """
    private = all_private((*aggregates, *others), schema)
    mus = [aggregate.mu for aggregate in aggregates if aggregate.mu is not None]
    first, slack = aggregates[0], math.fsum(aggregate.slack for aggregate in aggregates)
    return {
        "mechanism": first.mechanism,
        "statistics": " ".join(aggregate.statistic for aggregate in aggregates),
        "contributors": min(aggregate.contributors for aggregate in aggregates),
        "private": private,
        "mu": accounting.compose(mus) if private and mus else None,
        **({"slack": slack} if private and slack else {}),
        "epsilon": first.epsilon if private and len(aggregates) == 1 else None,
        "delta": first.delta if private else None,
    }


def _version() -> str:
    try:
        return version("dca-proto")
    except PackageNotFoundError:
        return "not installed"


def require_arviz() -> Any:
    """Import ArviZ without its announcement of a new major version. Raises `DataError` if it is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            import arviz
    except ImportError as error:
        raise DataError(f"draws need ArviZ, which is missing here ({error}); {to_install('samplers')}") from None
    return arviz
