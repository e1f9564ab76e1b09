"""Linear regression from noisy sufficient statistics.

closed_form       the conjugate posterior, and repairs of indefinite noisy matrices
rows              the number of complete rows; rows on a sphere, the target's bound, weights
prior             the coefficients' prior, with a learned scale
aggregate_stats   statistics and posterior from released aggregates
job               the learning jobs, among them Algorithm 2
estimator         linear regression with scikit-learn's interface
baselines         non-private regressions to compare with
nodes             regression from many data nodes, by Markov chains with the noise in the model
"""
