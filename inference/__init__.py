"""Bayesian inference from noisy aggregates: pure functions over `dca_proto.aggregate.NoisyAggregate`.

Layout, in reading order (DESIGN.md in this folder gives the reasons):
    bounds, problem         public bounds of columns; a public schema with private rows
    datasets                data sets by name, each with public bounds; files are checked by SHA-256
    rounds                  the source of a job's sums; `run` drives a job
    columns, locate         standardisation of columns; centres and scales from a first round, however wide the bounds
    simplex                 projection of counts onto the simplex
    contraction             how much a posterior has learned: from the prior's to the posterior's spread
    releases                released data, checked and decoded: LDP reports, sums with known noise
    models                  one folder per model: its mathematics, learning jobs and estimator
    mcmc                    sampling: runs, kernels
    variational             doubly stochastic variational inference for any clipped gradient
    posterior, laws         the result of jobs and estimators: table, draws, predictions, refit under another prior
    saved                   posteriors in result files, and `load_result`, which reads them
    laplace                 the mode and curvature of a posterior given a noisy sum
    draws                   a posterior's draws for ArviZ; the only module that imports it
    jobs                    learning jobs by name, and their common base (`dca swarm --job`, `dca learn`)
    estimators              the same models with the interface of scikit-learn

A learning job is a generator: it yields `RoundRequest`s, is sent `NoisyAggregate`s and returns its result. It does not
know whether a live trainer or the ideal functionality answers.
"""

PROJECT = "dca-proto"  # `dca` recognises the package by this line among others of the same name
