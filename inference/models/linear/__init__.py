"""Linear regression from noisy sufficient statistics.

closed_form               the conjugate posterior
repair, complete_rows     noisy matrices that are indefinite; how many rows had no missing value
prior                     of the coefficients, with a scale that is learned
whole_rows                rows on a sphere, the target's bound, weights
aggregate_stats           the statistics and the posterior of what rounds released
one_round, two_rounds     the learning jobs' rounds (`two_rounds` is Algorithm 2), with `job`
estimator                 linear regression with the interface of scikit-learn
baselines                 what a private regression is held against
nodes                     regression from many data nodes, by Markov chains with the noise in the model
"""
