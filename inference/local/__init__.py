"""Bayesian inference from local reports, with their noise in the model (Kulkarni, Jälkö, Kaski, Honkela 2021).

Each client perturbs its own value or statistics once; the posterior is conditioned on what came in. The same models of
sums serve every other release of the protocol, whose noise is of another variance and nothing else.

General layout, in reading order:
    terms, reports              the door: what was released, checked, in the shape of the models
    priors                      what is believed before (section 8)
    fit                         all fits by name: reports or sums in, a posterior out
    run                         how to sample
    posterior                   draws, what they are worth, and warnings in words
    regression, sites           the same of regressions, in the units of the user's columns
    predictive                  what new clients are like
    picture                     posteriors beside priors

These need NumPy and SciPy alone. With JAX, likelihoods as plain functions in log space, for whatever sampler:
    rectified                   one clipped number with Laplace or Gaussian noise (10)
    truncated_moments           Lemma 3.2: a polynomial times the exponential of a quadratic, in Gaussian noise
    categories                  one of k categories told as bits or at random (11)
    moments, summed             noisy sums of a regression's sufficient statistics (3.1, 13)
    perturbed                   a regression's perturbed rows (12)
    chebyshev, logistic_normal  the sigmoid as a polynomial, and its exact mean under a normal law
    few_points                  many reports with Gaussian noise at the cost of a few
    log_space                   what keeps them finite far out

With NumPyro (the extra `samplers`):
    models                      priors and likelihoods together
    nuts                        running the sampler, compiled once for each shape of data
"""

from inference.local.fit import (
    exponential,
    gaussian,
    geometric,
    histogram,
    linear,
    linear_inputs,
    logistic,
    logistic_inputs,
    poisson,
)
from inference.local.posterior import LocalPosterior
from inference.local.priors import DirichletPrior, GaussianPrior, ProbabilityPrior, RatePrior, RegressionPrior
from inference.local.regression import LocalRegression

__all__ = [
    "DirichletPrior",
    "GaussianPrior",
    "LocalPosterior",
    "LocalRegression",
    "ProbabilityPrior",
    "RatePrior",
    "RegressionPrior",
    "exponential",
    "gaussian",
    "geometric",
    "histogram",
    "linear",
    "linear_inputs",
    "logistic",
    "logistic_inputs",
    "poisson",
]
