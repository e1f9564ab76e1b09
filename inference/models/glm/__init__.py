"""Regressions with the noise in the model: from noisy sums, from LDP reports, and from a few rounds of scores.

moments                     noisy sums of a regression's sufficient statistics (LDP paper 2021, 3.1 and 13)
perturbed                   a regression's perturbed rows (12)
logistic_normal             the sigmoid's mean under a normal law, exactly
regression, sites           what a fit returns: coefficients in the columns' units
sgd                         gradient descent over reports
ldp_job, sgd_job            the learning jobs

families, scoring           Poisson and Student-t regression from scores: the models; private Fisher scoring
scored_rounds, scored_fit   its rounds and its result; `scored_job` the learning jobs, `estimator` the estimators
"""
