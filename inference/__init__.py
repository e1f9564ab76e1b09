"""Bayesian inference from noisy aggregates: pure functions over `dca_proto.aggregate.NoisyAggregate`.

General layout, in reading order:
    bounds              public bounds of columns: what is known of a measurement before anybody's data are seen
    datasets            problems to learn: a schema (public) beside rows (private)
    linear_regression   the conjugate posterior from noisy sufficient statistics, and its repair
    scale               standard deviations from noisy second moments
    projection          the threshold search of Algorithm 2 on auxiliary data
    algorithm2          the learning job: a generator of `RoundRequest`s
    regression          its result, in the user's own units
    baselines, report   what to hold it against, and a picture

A learning job is a generator: it yields `RoundRequest`s, is sent `NoisyAggregate`s and returns its result. It neither
knows nor cares whether a live trainer answers or the ideal functionality does.
"""
