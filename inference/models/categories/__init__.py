"""Regressions of categories: ordered ones by thresholds (proportional odds), others by a softmax.

model       parameters, chances, and how they move
scoring     the posterior from a few noisy sums of weighted scores
curves      whether log odds are curved in a feature
law         the result: effects in the columns' units, probabilities of categories
doubts      its warnings
job         the jobs `ordinal-regression` and `multinomial-regression`

`inference.models.classifiers` has the base class of their estimators.
"""
