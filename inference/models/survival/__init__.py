"""Survival analysis from noisy sums: curves with bands, the log-rank test and proportional hazards.

codes       a row's contribution to the sum, designed for the least noise in curves
curve       counts from a release; curves and the log-rank test from counts
hazards     proportional hazards, constant within intervals
doubts      their warnings
rounds      the columns of a job, the generators of both jobs, and their results
job         the jobs `survival` and `survival-regression`
estimator   `PrivateKaplanMeier` and `PrivateProportionalHazards`
"""
