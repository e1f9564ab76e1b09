"""Bayesian inference from noisy aggregates: pure functions over `dca_proto.aggregate.NoisyAggregate`.

General layout, in reading order (DESIGN.md beside this file says why):
    bounds, problem         public bounds of columns; a schema (public) beside rows (private)
    datasets                data sets by name, each with public bounds; files are checked by SHA-256
    rounds                  where a job's sums come from; `run` drives a job
    linear_regression       the conjugate posterior from noisy sufficient statistics
    repair                  what to do about a noisy matrix that is indefinite
    released                the same from what rounds released, one or several
    scale, projection       means and standard deviations from noisy moments; the threshold search of Algorithm 2
    algorithm2              the job of two rounds; `bounded_regression`, the job of one
    regression              their result, in the user's own units
    exponential_families    conjugate models of one column, plugged in or with the noise in the model (with `simplex`)
    distributed_regression  linear regression from many data nodes, by Markov chains with the noise in the model
    local                   from local reports of clients, and regression from any noisy sum, by Markov chains
    variational             doubly stochastic variational inference for any clipped gradient; a Gaussian mixture
    baselines, spent        what to hold results against (with `logistic_regression`); what they cost
    draws                   a posterior's draws for ArviZ, the one module that imports it
    jobs                    learning jobs by name: settings, rounds, what a result says (`dca swarm --job`, `dca learn`)
    estimators              the same for people who live in scikit-learn

A learning job is a generator: it yields `RoundRequest`s, is sent `NoisyAggregate`s and returns its result. It neither
knows nor cares whether a live trainer answers or the ideal functionality does.
"""

PROJECT = "dca-proto"  # by this line `dca` tells the package from others of its name
