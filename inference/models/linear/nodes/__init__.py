"""Distributed Bayesian regression with the privacy noise in the model (Alparslan, Yildirim and Birbil, ICML 2023).

J data nodes release noisy S_j = X_jᵀX_j and z_j = X_jᵀy_j; the posterior of the coefficients knows of the noise.

General layout, in reading order:
    observed            what was released, the prior, and the door from aggregates
    methods             all methods by name: statistics in, posterior out
    posterior           draws, what they are worth, and warnings in words
    own_units           the same in the units of the user's columns
    rounds, job         the learning job: one release by each data node, then a method
    fixed_s_fast        Algorithm 3, in closed form
    adassp              the ridge estimate of appendix C.2, with its own release or from what was released

These need NumPy alone. With JAX (the extra `samplers`), kernels for `inference.mcmc.sampler`:
    residual_variance   the random walk over σ_y² that several share
    normal_x            Algorithm 1
    fixed_s             Algorithm 2
    intercept           Algorithm 1 with an intercept (appendix B.2)
    collapsed           the posterior of Algorithm 1 by Hamiltonian Monte Carlo, θ integrated out
    marginal_likelihood, noncentred     its density and coordinates
    bernstein_sheldon   the method of appendix C.1
"""

from inference.models.linear.nodes.methods import METHODS, NAMES, fit
from inference.models.linear.nodes.observed import (
    Observed,
    Prior,
    check_observed,
    nodes_of,
    prior_of,
)
from inference.models.linear.nodes.own_units import DistributedFit, in_own_units
from inference.models.linear.nodes.posterior import DistributedPosterior
from inference.models.linear.nodes.rounds import distributed_regression

__all__ = [
    "METHODS",
    "NAMES",
    "DistributedFit",
    "DistributedPosterior",
    "Observed",
    "Prior",
    "check_observed",
    "distributed_regression",
    "fit",
    "in_own_units",
    "nodes_of",
    "prior_of",
]
