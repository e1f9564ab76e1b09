"""Linear regression from noisy sufficient statistics.

closed_form       the conjugate posterior, and repairs of noisy matrices that are indefinite
rows              how many rows had no missing value; rows on a sphere, the target's bound, weights
prior             of the coefficients, with a scale that is learned
aggregate_stats   the statistics and the posterior of what rounds released
job               the learning jobs, with Algorithm 2
estimator         linear regression with the interface of scikit-learn
baselines         what a private regression is compared with
nodes             regression from many data nodes, by Markov chains with the noise in the model
"""
