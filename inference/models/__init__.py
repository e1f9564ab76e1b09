"""Models, one folder each: the mathematics, the learning jobs (`job`, or `*_job` if there are several), the estimator.

    linear        linear regression: in closed form from one or two rounds, or from many data nodes (`linear.nodes`)
    logistic      logistic regression from scores, one sum, or many rounds of gradients
    glm           regressions from any noisy sum or from LDP reports; counts and robust regression from scores
    conjugate     one column, from sums
    column        one column, from LDP reports
    mixture       a Gaussian mixture
    survival      survival curves, the log-rank test, proportional hazards

Shared by several folders:
    fit           the fits by name: reports or sums in, a posterior out
    priors        prior distributions (LDP paper, section 8)
    noise_aware   priors and likelihoods as NumPyro models
    predictive    draws of new clients' values and reports
    coefficients  the posterior of a regression's coefficients
    expected      what its normal linear predictor is expected to give
    shrinkage     priors that shrink slopes
    estimator     the base class of all estimators

A `job` module has the generator of rounds, its settings and its plan.
"""
