"""The statistics that J data nodes released, and the prior: the input of all samplers (ICML 2023, section 3).

    θ ~ N(m, C)             coefficients, d of them            S_j = X_jᵀX_j,  z_j = X_jᵀy_j,  u_j = y_jᵀy_j
    σ_y² ~ IG(a, b)         variance of the residuals          n_j   rows of node j (public under replacement)
    Σ_x ~ IW(Λ, κ)          covariance of the features         each unique term of S_j, of z_j and u_j is released
    S_j | Σ_x ~ W(Σ_x, n_j)                                    with its own Gaussian noise, whose variance is known
    z_j | S_j ~ N(S_j θ, S_j σ_y²)                             (Proposition 3.1)

`nodes_of` converts and checks aggregates; `check_observed` checks arrays made by hand. A data node is an aggregate of
the statistic "regression", with the variance of the noise that was really added: either one data node's release, or the
DCA sum of a whole federation (J = 1). The weights of the blocks are divided out, so the variances of S, z and u may
differ. The statistic "averaged-regression" (appendix B.1), of averages of k rows, is the same with n/k rows and
weights k.

**Rows with missing values** count as zero: S, z and u are sums over the m_j complete rows, but the public n_j counts
all rows. `nodes_of` leaves the square of a constant, m_jc² plus noise, as released. Method `normal` draws m_j; fixed-s
and fast treat that square like any other term. Without a constant nothing reveals m_j, and the models use n_j instead.
Then Σ_x is too small by the missing share, with bernstein-sheldon also σ_y²; θ and its intervals do not change. If
nodes miss different shares and the noise is too small to hide that, intervals are too wide: 2.5 times, for 20,000 rows
per node, ε = 1 and shares of 0, 0.1 and 0.3; σ_y² is then 45 times too large.

**Is S possible?** The noise E is symmetric, with unique terms of variance s². Its largest eigenvalue is at most 2s√d
on average (Slepian; the GOE's larger noise on the diagonal only adds to it), and changes by at most √2 times as much as
the vector of unique terms. So P(λ_max(E) > s(2√d + t)) <= exp(-t²/4). With a smallest eigenvalue below minus that
limit, at 1e-9, S is not a noisy sum of squares: weights, scale or variance are wrong, or it is another statistic.

**The default prior.** Columns are (x - centre)/scale with public centres and scales, clamped to ±bound; a standard
deviation is about bound/3 (`inference.columns`). With s_j and s_y for these, and h = 1/2 of the target's variance:

    θ_j ~ N(0, h s_y²/(d s_j²))     the features together explain half of the target on average; a constant's: s_y²/c²
    σ_y² ~ IG(2, (1 - h) s_y²)      mean: the other half; 90 % of it within a factor of 13; the variance is infinite
    Σ_x ~ IW(diag(s_j²), d + 2)     mean diag(s_j²), with the fewest whole degrees of freedom that have a mean

The prior of σ_y² matters more than usual: S and z contain d J numbers about it, of which θ uses up d. So with one node
the data say nothing about it, and the prior remains.
"""

from __future__ import annotations

from dataclasses import replace
from math import log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dca_proto.aggregate import NoisyAggregate
from inference.columns import PRIOR_MEAN_SD, Standardisation
from inference.errors import DataError
from inference.mcmc.sums import Aggregates, as_list
from inference.models.linear import aggregate_stats
from inference.models.linear.aggregate_stats import STATISTIC, constant_of, parameters_of
from inference.models.linear.closed_form import SufficientStatistics
from inference.models.linear.prior import PRIOR_R2
from inference.models.linear.rows import max_complete_rows
from inference.problem import AnyArray

OF_CLIENTS = "replace-one-client"  # the relation of a sum over clients; each counts as one row
AVERAGED, AVERAGED_GROUP = "averaged-regression", 10  # the statistic's name, and its default k
PRIOR_ROWS = 1.0  # k_0: the prior's weight, in rows at the public centre
IMPOSSIBLE = 1e-9  # probability that noise alone produces an eigenvalue low enough to be refused


class NodeStatistics(NamedTuple):
    """Noisy statistics of J nodes with d features, and the variances of the noise; float64, a JAX pytree.

    Attributes:
        S: noisy XᵀX, symmetric, shape ``(J, d, d)``. z: noisy Xᵀy, shape ``(J, d)``.
        n: rows, complete or not, shape ``(J,)``.
        variance_S: noise variance of each unique term of S, shape ``(J,)``. variance_z: of each term of z, ``(J,)``.
        u: noisy yᵀy, shape ``(J,)``; nan if it was not released. variance_u: its noise variance, shape ``(J,)``.
        constant: value c of the first feature if it is a public constant (an intercept); 0 if all features are columns.
            Its square, c² for each complete row, is as noisy as the other terms. Shape ``()``.
    """

    S: AnyArray
    z: AnyArray
    n: AnyArray
    variance_S: AnyArray  # noqa: N815 - the paper's S
    variance_z: AnyArray
    u: AnyArray
    variance_u: AnyArray
    constant: AnyArray = np.zeros(())

    @property
    def nodes(self) -> int:
        """J."""
        return int(self.S.shape[-3])

    @property
    def features(self) -> int:
        """d, a constant included."""
        return int(self.S.shape[-1])


class Prior(NamedTuple):
    """θ ~ N(m, C), σ_y² ~ IG(a, b), Σ_x ~ IW(Λ, κ).

    Attributes:
        m: shape ``(d,)``. C, Lambda: shape ``(d, d)``, positive definite. a, b, kappa: above 0; kappa > d - 1.
            Samplers that model a constant first feature ignore Lambda's first row and column.
    """

    m: AnyArray
    C: AnyArray
    a: AnyArray
    b: AnyArray
    Lambda: AnyArray
    kappa: AnyArray

    @classmethod
    def default(cls, d: int, sd: ArrayLike = PRIOR_MEAN_SD, constant: float = 0.0) -> Prior:
        """Return the prior for standardised columns; the module's docstring gives the reasons.

        Args:
            d: features, a constant included. sd: rough standard deviations of the d features, then the target, in the
                scaled units, broadcastable to ``(d + 1,)``; a third for columns in half-widths of their bounds.
            constant: value of the first feature if it is a constant, else 0. Its entry of ``sd`` is not used.
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
        """Return this prior with other standard deviations, in scaled units; the residuals' is √E[σ_y²].

        Args:
            intercept_sd: of a constant's coefficient times the constant. A prior has a constant if κ = d + 1, not
                d + 2.
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


def nodes_of(aggregates: Aggregates) -> NodeStatistics:
    """Convert aggregates of the statistic "regression" to the samplers' data.

    Args:
        aggregates: one or several. A node release stands for all its nodes: pass it, or some of its ``nodes``. Any
            other aggregate stands for one node.

    Raises:
        DataError: there is no aggregate, or they differ in statistic, columns, scales, bounds or relation; or as for
            `check_observed`.
    """
    nodes = listed_nodes(regressions(aggregates))
    for place, node in enumerate(nodes[1:], start=2):
        if node.relation != nodes[0].relation:
            raise DataError(
                f"node {place} was released under the relation {node.relation!r}, the first under "
                f"{nodes[0].relation!r}; learn from nodes with the same relation"
            )
    parts, parameters = [aggregate_stats.unpacked(node) for node in nodes], parameters_of(nodes[0])
    aggregate_stats.require_plain_rows(parameters, "regression from nodes")
    constant = constant_of(parameters)

    def rows(node: NoisyAggregate, part: SufficientStatistics) -> float:
        """Count rows, complete or not. If clients sum several rows each, there may be more rows than clients."""
        if node.relation != OF_CLIENTS or not constant:
            return float(node.contributors)
        variance = np.asarray(part.noise.xx) / constant**4
        return float(max_complete_rows(part.xx[0, 0] / constant**2, variance, np.asarray(node.contributors)))

    return check_observed(
        NodeStatistics(
            S=np.array([part.xx for part in parts]),
            z=np.array([part.xy for part in parts]),
            n=np.array([rows(node, part) for node, part in zip(nodes, parts, strict=True)]),
            variance_S=np.array([part.noise.xx for part in parts], float),
            variance_z=np.array([part.noise.xy for part in parts], float),
            u=np.array([np.nan if part.yy is None else part.yy for part in parts], float),
            variance_u=np.array([np.nan if part.yy is None else part.noise.yy for part in parts], float),
            constant=np.array(constant, float),
        )
    )


def listed_nodes(aggregates: Aggregates) -> list[NoisyAggregate]:
    """Return the nodes of all aggregates; an aggregate without nodes stands for one node."""
    return [node for aggregate in as_list(aggregates) for node in (aggregate.nodes or (aggregate,))]


def regressions(aggregates: Aggregates) -> list[NoisyAggregate]:
    """Convert aggregates, averaged ones included, to the statistic "regression", and check that they fit together.

    Raises:
        DataError: there is no aggregate, one occurs twice, or they are of another statistic or of different columns.
    """
    return aggregate_stats.checked([_as_regression(aggregate) for aggregate in as_list(aggregates)])


def _as_regression(aggregate: NoisyAggregate) -> NoisyAggregate:
    """Express averages of k rows as a regression on n/k rows (one per client in a sum) with weights k."""
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
    """Return `Prior.default` for the columns of these aggregates: standard deviations are a third of their bounds.

    Raises:
        DataError: as for `regressions`.
    """
    parameters = parameters_of(regressions(aggregates)[0])
    sd, constant = PRIOR_MEAN_SD * Standardisation.of(parameters).bound, constant_of(parameters)
    return Prior.default(len(sd), np.r_[constant, sd], constant) if constant else Prior.default(len(sd) - 1, sd)


def check_observed(observed: NodeStatistics) -> NodeStatistics:
    """Return the statistics as float64 arrays after checking them.

    Raises:
        DataError: there is no node; shapes differ within or between nodes; a number is not finite; S is not symmetric,
            or further from any positive semi-definite matrix than its noise explains; a node has no row; or a variance
            is negative.
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
    """Raise `DataError` if the prior has wrong shapes for d features, or a number or matrix that is not positive."""
    for name, shape in (("m", (d,)), ("C", (d, d)), ("Lambda", (d, d))):
        if (actual := np.shape(getattr(prior, name))) != shape:
            raise DataError(f"the prior's {name} has the shape {actual}; expected {shape} for {d} features")
    for name, above in (("a", 0), ("b", 0), ("kappa", d - 1)):
        if not above < (number := float(getattr(prior, name))) < np.inf:
            raise DataError(f"the prior's {name} is {number:g}; give a finite number above {above}")
    for name in ("C", "Lambda"):
        matrix = np.asarray(getattr(prior, name), float)
        if not np.allclose(matrix, matrix.T) or np.linalg.eigvalsh(matrix)[0] <= 0:
            raise DataError(f"the prior's {name} is not symmetric and positive definite, as a covariance must be")


def _check_node(observed: NodeStatistics, j: int) -> None:
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
    # Noise takes an eigenvalue further below 0 than this with a probability of at most `IMPOSSIBLE`
    margin = sqrt(observed.variance_S[j]) * (2 * sqrt(len(S)) + 2 * sqrt(log(1 / IMPOSSIBLE)))
    if (lowest := float(np.linalg.eigvalsh(S)[0])) < -margin - 1e-9 * scale:
        raise DataError(
            f"S of node {j + 1} has the eigenvalue {lowest:.4g}, and noise of variance {observed.variance_S[j]:.4g} "
            f"explains none below {-margin:.4g}; check the scale, the weights and the variance of what it released"
        )
