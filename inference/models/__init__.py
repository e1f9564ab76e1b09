"""Models, one folder each: mathematics, learning jobs (`job`, or `*_job` where there are several), estimator.

    linear        linear regression from one or two rounds in closed form, and from many data nodes (`linear.nodes`)
    logistic      logistic regression from scores, one sum, or many rounds of gradients
    glm           regressions from any noisy sum, from LDP reports, or of counts and outliers from scores
    conjugate     one column, from sums
    column        one column, from LDP reports
    mixture       a Gaussian mixture
    survival      survival curves, the log-rank test, proportional hazards

What `glm` and `column` share stands beside the folders:
    fit           all fits by name: reports or sums in, a posterior out
    priors        what is believed before (LDP paper, section 8)
    noise_aware   priors and likelihoods together, for NumPyro
    predictive    what new clients are like
    estimator     what all estimators share

In a folder, `job` has the generator of rounds, its settings and its plan.
"""
