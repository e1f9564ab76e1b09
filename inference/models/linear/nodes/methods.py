"""All methods by name, behind one function: statistics and a prior in, a posterior with its diagnosis out.

    name               model of the features            what is sampled             needs
    intercept          normal, about an unknown mean    S, θ, σ_y², Σ_x, mean       JAX, a constant feature
    collapsed          N(0, Σ_x)                        S, θ, σ_y², Σ_x             JAX
    normal-x           N(0, Σ_x)                        S, θ, σ_y², Σ_x             JAX
    fixed-s            none, S plugged in               θ, σ_y²                     JAX
    fast               none, S and σ_y² plugged in      nothing (closed form)       ‖Y‖ or σ_y²
    bernstein-sheldon  N(0, Σ_x), sums normal           S, z, u, θ, σ_y², Σ_x       JAX, yᵀy

collapsed samples the posterior of normal-x, with far fewer iterations for as many effective draws.

**Intercepts.** A constant feature is not normal, so collapsed, normal-x and bernstein-sheldon refuse statistics with
one. They are for columns that are centred already; "intercept" is the model of normal-x for those that are not
(appendix B.2). Methods without a distribution of the features take a constant as any other feature.

adaSSP is not here: it is a point estimate, with a release of its own or from the same statistics (`adassp`).

JAX is optional and imported only for methods that need it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from dca_proto.wording import to_install
from inference.draws import CHAINS
from inference.errors import DataError, unknown
from inference.models.linear.nodes import fixed_s_fast
from inference.models.linear.nodes.observed import (
    Observed,
    Prior,
    check_observed,
    check_prior,
)
from inference.models.linear.nodes.posterior import DistributedPosterior

if TYPE_CHECKING:
    from inference.mcmc.kernel import Kernel

OnProgress = Callable[[int, int], None]
"""Called with the iterations done and their total."""

REFUSED, TAKEN, REQUIRED = "refused", "taken", "required"
WARMUP, DRAWS = 2000, 1000  # of each chain, unless asked for others
KEPT = ("theta", "sigma_y2")
FAST_OPTIONS = ("bound_y", "rule", "sigma_y2")


@dataclass(frozen=True)
class Method:
    """A way to the posterior.

    Attributes:
        name: as in `fit`. about: what it is, in a few words for people.
        module: with its ``kernel(**options)``, and perhaps a ``kernel_for(observed, **options)`` that looks at the
            statistics first; none in closed form.
        constant: whether a constant first feature is `REFUSED`, `TAKEN` as any other, or `REQUIRED`.
        target_square: whether it needs yᵀy.
        wishart: whether S_j is Wishart in its model, which has a density from d rows on, a constant counted in d.
        thin: iterations for each kept draw, unless asked for others.
    """

    name: str
    about: str
    module: str | None
    constant: str = REFUSED
    target_square: bool = False
    wishart: bool = False
    thin: int = 10


_LISTED = (
    Method(
        "intercept",
        "normal features about an unknown mean (B.2)",
        "inference.models.linear.nodes.intercept",
        constant=REQUIRED,
        wishart=True,
        thin=50,
    ),
    Method(
        "collapsed",
        "the posterior of normal-x by Hamiltonian Monte Carlo",
        "inference.models.linear.nodes.collapsed",
        wishart=True,
        thin=1,
    ),
    Method("normal-x", "MCMC-normalX (Algorithm 1)", "inference.models.linear.nodes.normal_x", wishart=True),
    Method("fixed-s", "MCMC-fixedS (Algorithm 2)", "inference.models.linear.nodes.fixed_s", constant=TAKEN),
    Method("fast", "Bayes-fixedS-fast (Algorithm 3), in closed form", None, constant=TAKEN),
    Method(
        "bernstein-sheldon",
        "MCMC-B&S (C.1)",
        "inference.models.linear.nodes.bernstein_sheldon",
        target_square=True,
    ),
)
METHODS: Mapping[str, Method] = {method.name: method for method in _LISTED}
NAMES = tuple(METHODS)
"""Of all methods; the first is the default of `job`."""


def find(name: str) -> Method:
    """The method of that name. Raises `DataError` for an unknown one, naming the nearest."""
    if name == "adassp":
        raise DataError("adaSSP is a point estimate and no posterior; see adassp.from_observed and adassp.release")
    if name not in METHODS:
        raise unknown("method", name, None, NAMES)
    return METHODS[name]


def ready(name: str, options: Mapping[str, Any]) -> Method:
    """The method of that name, once it is sure that it could start with these options.

    Raises:
        DataError: the method or an option is unknown, or JAX is missing.
    """
    method = find(name)
    known = FAST_OPTIONS if method.module is None else _options(_imported(method.name, method.module))
    for option in options:
        if option not in known:
            raise unknown("option", option, f"method {name!r}", known)
    return method


def kernel_of(name: str, observed: Observed | Sequence[Observed], **options: Any) -> Kernel:
    """The kernel of a method that samples, with its defaults but for the options.

    Args:
        name: of a method with a module. observed: one problem, or those of one shape that are sampled together.

    Raises:
        DataError: the method is unknown, JAX is missing, or the method is not for these statistics or options.
    """
    method = find(name)
    assert method.module is not None, "a closed form has no kernel"
    made = _imported(method.name, method.module)
    kernel: Kernel = made.kernel_for(observed, **options) if hasattr(made, "kernel_for") else made.kernel(**options)
    return kernel


def fit(
    name: str,
    observed: Observed,
    prior: Prior | None = None,
    *,
    chains: int = CHAINS,
    warmup: int = WARMUP,
    draws: int = DRAWS,
    thin: int | None = None,
    seed: int = 0,
    names: Sequence[str] | None = None,
    keep: Sequence[str] = KEPT,
    on_progress: OnProgress | None = None,
    options: Mapping[str, Any] | None = None,
    attrs: Mapping[str, object] | None = None,
) -> DistributedPosterior:
    """The posterior of the coefficients by a named method, in the units of the statistics.

    Args:
        name: one of `NAMES`.
        observed: of the nodes, as from `nodes_of`. prior: by default that of columns in half-widths of their bounds.
        chains, warmup, draws, thin: of each chain: ``warmup + thin * draws`` iterations, of which ``draws`` are kept.
            In closed form there is no warm-up, and draws are independent; ``thin`` is the method's own by default.
        seed: of all randomness. names: of θ's coordinates; by default "1", "2", ....
        keep: which parameters' draws; θ and σ_y² always.
        on_progress: called now and then with the iterations done and their total.
        options: of the method: keyword arguments of its ``kernel_for`` or ``kernel``; of "fast": ``bound_y`` with
            ``rule``, or ``sigma_y2``. attrs: what the draws rest on (`draws.attributes`), for InferenceData.

    Raises:
        DataError: an unknown method or option, JAX is missing, the statistics are not for this method or fail
            `check_observed`, or shapes and names do not fit.
    """
    given = dict(options or {})
    method = ready(name, given)
    observed = check_observed(observed)
    constant = float(observed.constant)
    prior = Prior.default(observed.features, constant=constant) if prior is None else prior
    _check(method, observed, prior)
    labels = _labels(names, observed.features)
    thin = method.thin if thin is None else thin
    counts = {"chains": chains, "warmup": warmup, "draws": draws, "thin": thin, "seed": seed}
    if method.module is None:
        return _closed_form(method, observed, prior, counts, labels, given, attrs or {})
    kernel = kernel_of(method.name, observed, **given)
    sampler = _imported(method.name, "inference.mcmc.sampler")
    kept = tuple(dict.fromkeys((*KEPT, *keep)))
    made = sampler.sample(kernel, observed, prior, **counts, names=kept, on_progress=on_progress)
    return DistributedPosterior(
        method.name,
        _first(made.draws),
        labels,
        warmup=_first(made.warmup) if warmup >= thin else {},
        acceptance=_first(made.acceptance),
        divergences=made.divergences[0],
        seconds=made.seconds,
        attrs=attrs or {},
    )


def _first(by_name: Mapping[str, Any]) -> dict[str, Any]:
    """Of the one problem."""
    return {name: array[0] for name, array in by_name.items()}


def check_statistic(method: Method, *, constant: bool, target_square: bool) -> None:
    """Raise `DataError` where a method cannot learn from statistics with, or without, a constant feature and yᵀy."""
    if constant and method.constant == REFUSED:
        takers = ", ".join(repr(one.name) for one in METHODS.values() if one.constant != REFUSED)
        raise DataError(
            f"the first feature is a constant, which method {method.name!r} has no model of; take one of {takers}, or "
            "release centred columns without an intercept"
        )
    if not constant and method.constant == REQUIRED:
        raise DataError(
            f"method {method.name!r} is for statistics with a constant first feature; release them with an intercept, "
            "or take 'normal-x'"
        )
    if method.target_square and not target_square:
        raise DataError(f"method {method.name!r} needs yᵀy of every node; release the statistic with target_square")


def rows_least(method: Method, features: int) -> int:
    """Rows that each node must have for a method. features: d, a constant among them."""
    return features if method.wishart else 1


def _check(method: Method, observed: Observed, prior: Prior) -> None:
    """Raise `DataError` where the prior is none for the statistics, or these are not for the method."""
    check_prior(prior, observed.features)
    has_squares = bool(np.all(np.isfinite(observed.u) & np.isfinite(observed.variance_u)))
    check_statistic(method, constant=bool(observed.constant), target_square=has_squares)
    if (few := observed.n < rows_least(method, observed.features)).any():
        node = int(np.argmax(few))
        raise DataError(
            f"node {node + 1} has {observed.n[node]:g} rows, and method {method.name!r} needs as many of each node as "
            f"there are features, {observed.features}; leave it out, or take 'fixed-s' or 'fast'"
        )
    if method.module and not (np.all(observed.variance_S > 0) and np.all(observed.variance_z > 0)):
        raise DataError(
            f"a variance of noise is 0, and method {method.name!r} models noise; exact statistics need method 'fast'"
        )


def _labels(names: Sequence[str] | None, d: int) -> tuple[str, ...]:
    labels = tuple(str(place) for place in range(1, d + 1)) if names is None else tuple(names)
    if len(labels) != d:
        raise DataError(f"{len(labels)} names for {d} coefficients; name each, the constant's too")
    return labels


def _closed_form(
    method: Method,
    observed: Observed,
    prior: Prior,
    counts: Mapping[str, int],
    labels: tuple[str, ...],
    options: dict[str, Any],
    attrs: Mapping[str, object],
) -> DistributedPosterior:
    """Algorithm 3, with independent draws of its Gaussian."""
    gaussian = fixed_s_fast.posterior(observed, prior, _plugged_in(options))
    chains, draws = counts["chains"], counts["draws"]
    if min(chains, draws) < 1:
        raise DataError(f"{chains} chains of {draws} draws; take at least one of each")
    theta = gaussian.draws(np.random.default_rng(counts["seed"]), chains, draws)
    sigma_y2 = np.full((chains, draws), float(gaussian.residual_variance))
    return DistributedPosterior(
        method.name, {"theta": theta, "sigma_y2": sigma_y2}, labels, gaussian=gaussian, attrs=attrs
    )


def _plugged_in(options: dict[str, Any]) -> float:
    """σ̂_y² of the options of "fast"."""
    if ("sigma_y2" in options) == ("bound_y" in options):
        raise DataError(
            "method 'fast' plugs in the residuals' variance: give the option bound_y, the target's largest absolute "
            "value, or sigma_y2, and not both"
        )
    if "sigma_y2" in options:
        return float(options["sigma_y2"])
    return fixed_s_fast.crude_sigma_y2(options["bound_y"], options.get("rule", fixed_s_fast.SD))


def _options(module: Any) -> tuple[str, ...]:
    """Names of the keyword arguments of its constructor of kernels."""
    parameters = inspect.signature(getattr(module, "kernel_for", module.kernel)).parameters.values()
    return tuple(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)


def _imported(name: str, module: str) -> Any:
    """A module that needs JAX, for the method of that name."""
    try:
        return import_module(module)
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("jax", "jaxlib"):
            raise
        raise DataError(
            f"method {name!r} needs JAX, which is missing here ({error}); {to_install('samplers')}, or take "
            "method 'fast'"
        ) from None
