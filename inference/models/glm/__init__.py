"""Regressions with the noise in the model: from noisy sums, from LDP reports, and from a few rounds of scores.

moments, perturbed      likelihoods of noisy sums and of perturbed rows (LDP paper 2021, 3.1, 12 and 13)
logistic_normal         the exact mean of the sigmoid under a normal law
regression              the result of a fit: coefficients in the columns' units
ldp_job, sgd            the learning jobs: a posterior given reports; gradient descent over reports

families, scoring       Poisson, Student-t and logistic regression from scores: the models; private Fisher scoring
scored_fit              the posterior from scores
job, estimator          rounds of scores and their learning jobs; the estimators
"""
