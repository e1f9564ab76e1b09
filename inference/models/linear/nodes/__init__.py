"""Distributed Bayesian regression with the privacy noise in the model (Alparslan, Yildirim and Birbil, ICML 2023).

J data nodes release noisy S_j = X_jᵀX_j and z_j = X_jᵀy_j; the posterior of the coefficients models the noise.

    observed        the released statistics, the prior, and the conversion from aggregates
    methods         statistics in, a regression in the columns' own units out
    model           the NumPyro model (needs the extra `samplers`)
    fixed_s_fast    Algorithm 3, in closed form
    job             the learning job: one release by each data node, then a method

The paper's other samplers and adaSSP are in `scripts/papers/mcmc2023`.
"""

from inference.models.linear.nodes.methods import fit
from inference.models.linear.nodes.observed import NodeStatistics, Prior, nodes_of, prior_of

__all__ = ["NodeStatistics", "Prior", "fit", "nodes_of", "prior_of"]
