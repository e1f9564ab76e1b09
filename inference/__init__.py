"""Bayesian inference from noisy aggregates: pure functions over `dca_proto.aggregate.NoisyAggregate`.

General layout, in reading order (DESIGN.md beside this file says why):
    bounds, problem         public bounds of columns; a schema (public) beside rows (private)
    datasets                data sets by name, each with public bounds; files are checked by SHA-256
    rounds                  where a job's sums come from; `run` drives a job
    columns, locate         how columns are measured; centres and scales from a first round, of any width of bounds
    simplex                 the nearest shares
    contraction             how much a posterior has learned: from the prior to the posterior spread
    releases                what came in, checked and decoded: LDP reports, sums with known noise
    models                  one folder a model: its mathematics, its learning jobs, its estimator
    mcmc                    sampling: runs, kernels, posteriors, diagnostics
    variational             doubly stochastic variational inference for any clipped gradient
    posterior               what jobs and estimators learn: table, summary, refit under another prior
    laplace                 the mode and curvature of a posterior given a noisy sum
    draws                   a posterior's draws for ArviZ, the one module that imports it
    jobs                    learning jobs by name; what they share (`dca swarm --job`, `dca learn`)
    estimators              the same with the interface of scikit-learn

A learning job is a generator: it yields `RoundRequest`s, is sent `NoisyAggregate`s and returns its result. It does not
know whether a live trainer answers or the ideal functionality.
"""

PROJECT = "dca-proto"  # by this line `dca` recognises the package among others of its name
