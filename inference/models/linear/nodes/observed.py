"""What J data nodes released, and the prior: the input of all samplers (ICML 2023, section 3).

    θ ~ N(m, C)             coefficients, d of them            S_j = X_jᵀX_j,  z_j = X_jᵀy_j,  u_j = y_jᵀy_j
    σ_y² ~ IG(a, b)         variance of the residuals          n_j   rows of node j (public under replacement)
    Σ_x ~ IW(Λ, κ)          covariance of the features         each unique term of S_j, of z_j and u_j is released
    S_j | Σ_x ~ W(Σ_x, n_j)                                    with its own Gaussian noise, whose variance is known
    z_j | S_j ~ N(S_j θ, S_j σ_y²)                             (Proposition 3.1)

`nodes_of` is the one door from aggregates, `check_observed` the same for arrays made by hand. A data node is an
aggregate of the statistic "regression": one data node's release, or a whole federation whose sum is a DCA sum
(J = 1), with the variance of the noise that was really added. The weights of the blocks are divided out, so that the
variances of S, z and u may differ. The statistic "averaged-regression" (appendix B.1), of averages of k rows, is the
same for n/k rows with k as weights.

**Rows with missing values** count as zero: S, z and u are sums over the m_j complete rows, and n_j, which is public, is
not. `nodes_of` leaves the square of a constant, m_jc² and noise, as it was released. Method `normal` draws m_j; fixed-s
and fast take that square as any other term. Without a constant nothing shows m_j, and the models have n_j for it. Then
Σ_x comes out smaller by the missing share, with bernstein-sheldon σ_y² too; θ and its intervals do not change. Where
nodes miss different shares, and noise is too small to hide it, intervals are too wide: 2.5 times, with 20,000 rows of
each node at ε = 1 and shares of 0, 0.1 and 0.3, where σ_y² comes out 45 times too large.

**Is S possible?** The noise is E, symmetric, with unique terms of variance s². Its largest eigenvalue is 2s√d at most
on average (Slepian; more noise on the diagonal, as the GOE has, only adds to it), and changes by at most √2 times what
the vector of unique terms does, so that P(λ_max(E) > s(2√d + t)) <= exp(-t²/4). A smallest eigenvalue below minus that,
at 1e-9, is no noisy sum of squares: wrong weights or scale, a wrong variance, or not this statistic.

**The default prior.** Columns are (x - centre)/scale with public centres and scales, clamped to ±bound, and a standard
deviation is about bound/3 (`inference.columns`). With s_j and s_y for these, and h half of the target's variance:

    θ_j ~ N(0, h s_y²/(d s_j²))     the features together explain half of the target on average; a constant's: s_y²/c²
    σ_y² ~ IG(2, (1 - h) s_y²)      mean: the other half; 90 % of it within a factor of 13; the variance is infinite
    Σ_x ~ IW(diag(s_j²), d + 2)     mean diag(s_j²), with the fewest whole degrees of freedom that have a mean

The prior of σ_y² matters more than usual: S and z alone hold d J numbers about it, from which θ takes d, so that with
one node the data hold nothing about it and the prior remains. (The paper's prior is `Prior.published`.)
"""

from __future__ import annotations

from dataclasses import replace
from math import log, sqrt
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from dca_proto.aggregate import NoisyAggregate
from inference.columns import PRIOR_MEAN_SD, Standardisation
from inference.errors import DataError
from inference.models.linear import aggregate_stats
from inference.models.linear.aggregate_stats import STATISTIC, Aggregates, constant_of, parameters_of
from inference.models.linear.closed_form import SufficientStatistics
from inference.models.linear.prior import PRIOR_R2
from inference.models.linear.rows import max_complete_rows

Field: TypeAlias = Any
"""A float64 array: NumPy's, and JAX's own where a sampler is at work."""

OF_CLIENTS = "replace-one-client"  # the relation of a sum over clients, each of which counts as one row
AVERAGED, AVERAGED_GROUP = "averaged-regression", 10  # the statistic's name, and k where a round does not name it
PRIOR_ROWS = 1.0  # k_0: as if so many rows lay at the public centre
IMPOSSIBLE = 1e-9  # how rarely noise alone makes an eigenvalue as low as is refused


class NodeStatistics(NamedTuple):
    """Noisy statistics of J nodes with d features, and their exact noise: NumPy, float64, a JAX pytree as it is.

    Attributes:
        S: noisy XᵀX, symmetric, shape ``(J, d, d)``. z: noisy Xᵀy, shape ``(J, d)``.
        n: rows, complete or not, shape ``(J,)``.
        variance_S: of the noise in each unique term of S, shape ``(J,)``. variance_z: in each of z, shape ``(J,)``.
        u: noisy yᵀy, shape ``(J,)``; nan where it was not released. variance_u: of its noise, shape ``(J,)``.
        constant: value of the first feature where it is a public constant (an intercept), whose own square is c² for
            each complete row, and as noisy as the other terms; 0 where all features are columns. Shape ``()``.
    """

    S: Field
    z: Field
    n: Field
    variance_S: Field  # noqa: N815 - the paper's S
    variance_z: Field
    u: Field
    variance_u: Field
    constant: Field = np.zeros(())

    @property
    def nodes(self) -> int:
        """J."""
        return int(self.S.shape[-3])

    @property
    def features(self) -> int:
        """d, a constant among them."""
        return int(self.S.shape[-1])


class Prior(NamedTuple):
    """θ ~ N(m, C), σ_y² ~ IG(a, b), Σ_x ~ IW(Λ, κ).

    Attributes:
        m: shape ``(d,)``. C, Lambda: shape ``(d, d)``, positive definite. a, b, kappa: above 0; kappa > d - 1.
            The samplers that know of a constant first feature take the rest of Lambda.
    """

    m: Field
    C: Field
    a: Field
    b: Field
    Lambda: Field
    kappa: Field

    @classmethod
    def default(cls, d: int, sd: ArrayLike = PRIOR_MEAN_SD, constant: float = 0.0) -> Prior:
        """The prior of standardised columns; the head of this file has the reasons.

        Args:
            d: features, a constant among them. sd: rough standard deviations of the d features, then the target, in
                the scaled units, broadcastable to ``(d + 1,)``; a third for columns in half-widths of their bounds.
            constant: value of the first feature where it is a constant, else 0. Its entry of ``sd`` is not used.
        """
        spread = np.broadcast_to(np.asarray(sd, float), (d + 1,)) ** 2
        explained, columns = PRIOR_R2 * spread[-1], d - (constant > 0)
        C = np.diag(explained / (max(columns, 1) * spread[:-1]))
        if constant > 0:
            C[0, 0] = spread[-1] / constant**2
        left = spread[-1] - explained
        return cls(np.zeros(d), C, np.array(2.0), np.asarray(left), np.diag(spread[:-1]), np.array(columns + 2.0))

    def about(
        self,
        coefficient_sd: float | None = None,
        intercept_sd: float | None = None,
        feature_sd: float | None = None,
        residual_sd: float | None = None,
    ) -> Prior:
        """This prior with other standard deviations, in the scaled units; that of the residuals is √E[σ_y²].

        Args:
            intercept_sd: of a constant's coefficient times the constant. A prior has a constant where κ counts one
                feature less than there are.
        """
        d = len(self.m)
        first, C, Lambda = int(d + 2 - float(self.kappa)), np.array(self.C), np.array(self.Lambda)
        if coefficient_sd is not None:
            C[first:, first:] = coefficient_sd**2 * np.eye(d - first)
        if feature_sd is not None:
            Lambda[first:, first:] = feature_sd**2 * np.eye(d - first)
        if intercept_sd is not None and first:
            C[0, 0] = intercept_sd**2 / Lambda[0, 0]
        return self._replace(C=C, Lambda=Lambda, b=self.b if residual_sd is None else np.asarray(residual_sd**2))

    @classmethod
    def published(cls, d: int, Lambda: ArrayLike) -> Prior:
        """That of the paper's experiments (section 5.1): a = 20, b = 0.5, m = 0, κ = d + 1, C = b/(a - 1)·I.

        The paper's tables come out with this C; its code has the inverse.

        Args:
            Lambda: Λ = VᵀV with random V there, shape ``(d, d)``.
        """
        a, b = 20.0, 0.5
        scale = np.asarray(Lambda, float)
        return cls(np.zeros(d), b / (a - 1) * np.eye(d), np.array(a), np.array(b), scale, np.array(d + 1.0))


def nodes_of(aggregates: Aggregates) -> NodeStatistics:
    """The samplers' data, of released aggregates of the statistic "regression".

    Args:
        aggregates: one or several. One of a node release stands for all its nodes: give it, or some of its ``nodes``.
            Any other stands for one node.

    Raises:
        DataError: there is none, they are of another statistic, or of different columns, scales, bounds or relations;
            or as `check_observed`.
    """
    nodes = listed_nodes(regressions(aggregates))
    for place, node in enumerate(nodes[1:], start=2):
        if node.relation != nodes[0].relation:
            raise DataError(
                f"node {place} was released under the relation {node.relation!r}, the first under "
                f"{nodes[0].relation!r}; learn from nodes that promise the same"
            )
    parts, parameters = [aggregate_stats.unpacked(node) for node in nodes], parameters_of(nodes[0])
    aggregate_stats.require_plain_rows(parameters, "regression from nodes")
    constant = constant_of(parameters)

    def rows(node: NoisyAggregate, part: SufficientStatistics) -> float:
        """Complete or not. Clients who sum several rows each may be more rows than clients."""
        if node.relation != OF_CLIENTS or not constant:
            return float(node.contributors)
        variance = np.asarray(part.noise.xx) / constant**4
        return float(max_complete_rows(part.xx[0, 0] / constant**2, variance, np.asarray(node.contributors)))

    return check_observed(
        NodeStatistics(
            S=np.array([part.xx for part in parts]),
            z=np.array([part.xy for part in parts]),
            n=np.array([rows(*one) for one in zip(nodes, parts, strict=True)]),
            variance_S=np.array([part.noise.xx for part in parts], float),
            variance_z=np.array([part.noise.xy for part in parts], float),
            u=np.array([np.nan if part.yy is None else part.yy for part in parts], float),
            variance_u=np.array([np.nan if part.yy is None else part.noise.yy for part in parts], float),
            constant=np.array(constant, float),
        )
    )


def listed_nodes(aggregates: Aggregates) -> list[NoisyAggregate]:
    """The nodes of all aggregates; one without any stands for one node."""
    listed = [aggregates] if isinstance(aggregates, NoisyAggregate) else aggregates
    return [node for one in listed for node in (one.nodes or (one,))]


def regressions(aggregates: Aggregates) -> list[NoisyAggregate]:
    """The aggregates as of the statistic "regression", averaged ones too, which all fit together.

    Raises:
        DataError: there is none, one is there twice, or they are of another statistic or of different columns.
    """
    listed = [aggregates] if isinstance(aggregates, NoisyAggregate) else list(aggregates)
    return aggregate_stats.checked([_as_regression(one) for one in listed])


def _as_regression(aggregate: NoisyAggregate) -> NoisyAggregate:
    """Reads averages of k rows as k times the terms of n/k rows, or of one group of each client."""
    if aggregate.statistic != AVERAGED:
        return aggregate
    parameters = dict(aggregate.parameters)
    k = parameters.pop("group", AVERAGED_GROUP)
    return replace(
        aggregate,
        statistic=STATISTIC,
        parameters={**parameters, "weights": (k, k, k)},
        contributors=aggregate.contributors // (1 if aggregate.relation == OF_CLIENTS else k),
        nodes=tuple(_as_regression(node) for node in aggregate.nodes),
    )


def prior_of(aggregates: Aggregates) -> Prior:
    """`Prior.default` for the columns of these aggregates: standard deviations of a third of their bounds.

    Raises:
        DataError: as `nodes_of` for what does not fit together.
    """
    parameters = parameters_of(regressions(aggregates)[0])
    sd, constant = PRIOR_MEAN_SD * Standardisation.of(parameters).bound, constant_of(parameters)
    return Prior.default(len(sd), np.r_[constant, sd], constant) if constant else Prior.default(len(sd) - 1, sd)


def check_observed(observed: NodeStatistics) -> NodeStatistics:
    """Returns float64 arrays that fit together.

    Raises:
        DataError: no node, shapes differ, between nodes too, a number is not finite, S is not symmetric or further from
            any positive semi-definite matrix than its noise explains, a node has no row, or a variance is negative.
    """
    try:
        arrays = NodeStatistics(*(np.asarray(array, float) for array in observed))
    except ValueError:  # a list of different shapes
        raise DataError("nodes differ in shape; give nodes with the same features only") from None
    if arrays.S.ndim != 3 or arrays.S.shape[0] == 0:
        raise DataError(f"S has the shape {arrays.S.shape}, so there is no node; give S of at least one, (J, d, d)")
    J, d = arrays.S.shape[:2]
    shapes = {"S": (J, d, d), "z": (J, d), "constant": ()}
    for name, array in zip(NodeStatistics._fields, arrays, strict=True):
        if array.shape != (shape := shapes.get(name, (J,))):
            raise DataError(f"{name} has the shape {array.shape}; expected {shape} for {J} nodes and {d} features")
    for j in range(J):
        _check_node(arrays, j)
    return arrays


def check_prior(prior: Prior, d: int) -> None:
    """Raise `DataError` where a prior is no distribution of d features: shapes, positive numbers, definite matrices."""
    for name, shape in (("m", (d,)), ("C", (d, d)), ("Lambda", (d, d))):
        if (found := np.shape(getattr(prior, name))) != shape:
            raise DataError(f"the prior's {name} has the shape {found}; expected {shape} for {d} features")
    for name, above in (("a", 0), ("b", 0), ("kappa", d - 1)):
        if not above < (number := float(getattr(prior, name))) < np.inf:
            raise DataError(f"the prior's {name} is {number:g}; give a finite number above {above}")
    for name in ("C", "Lambda"):
        matrix = np.asarray(getattr(prior, name), float)
        if not np.allclose(matrix, matrix.T) or np.linalg.eigvalsh(matrix)[0] <= 0:
            raise DataError(f"the prior's {name} is not symmetric and positive definite, as a covariance must be")


def _check_node(observed: NodeStatistics, j: int) -> None:
    """Raise `DataError` for what is wrong with one node."""
    S, n = observed.S[j], observed.n[j]
    for name in ("S", "z", "n", "variance_S", "variance_z"):
        if not np.all(np.isfinite(getattr(observed, name)[j])):
            raise DataError(f"{name} of node {j + 1} is not finite; leave the node out, or check how it was released")
    if n < 1:
        raise DataError(f"node {j + 1} has {n:g} rows; a node needs at least 1, so leave it out")
    for name in ("variance_S", "variance_z", "variance_u"):
        if (variance := getattr(observed, name)[j]) < 0:
            raise DataError(f"{name} of node {j + 1} is {variance:g}; a variance of noise is at least 0")
    scale = float(np.abs(S).max(initial=0.0))
    if not np.allclose(S, S.T, rtol=0, atol=1e-9 * scale):
        raise DataError(f"S of node {j + 1} is not symmetric; give both halves the same noisy terms")
    # How far below 0 noise takes an eigenvalue, but for `IMPOSSIBLE`
    margin = sqrt(observed.variance_S[j]) * (2 * sqrt(len(S)) + 2 * sqrt(log(1 / IMPOSSIBLE)))
    if (lowest := float(np.linalg.eigvalsh(S)[0])) < -margin - 1e-9 * scale:
        raise DataError(
            f"S of node {j + 1} has the eigenvalue {lowest:.4g}, and noise of variance {observed.variance_S[j]:.4g} "
            f"explains none below {-margin:.4g}; check the scale, the weights and the variance of what it released"
        )
