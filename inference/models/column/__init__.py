"""One column from LDP reports: likelihoods as plain functions in log space (LDP paper 2021, 10 and 11).

families                    the laws of a clipped number
rectified                   one clipped number with Laplace or Gaussian noise, many reports at the cost of a few (10)
presence                    clients that say whether they have a value
categories                  one of k categories, by unary encoding or randomised response (11)
log_space                   functions of the normal distribution that stay finite far out; Lemma 3.2
mean_job, histogram_job     the learning jobs
"""
