"""Survival analysis from noisy sums: curves with bands, the log-rank test and proportional hazards.

codes       what each row adds to the sum, so that curves carry the least noise
curve       counts from a release; curves and the log-rank test from counts
hazards     proportional hazards, constant within intervals
rounds      which columns are read, the generators of both jobs, and their results
job         the jobs `survival` and `survival-regression`
estimator   `PrivateKaplanMeier` and `PrivateProportionalHazards`
"""
