"""One column from LDP reports: likelihoods as plain functions in log space (LDP paper 2021, 10 and 11).

rectified                   one clipped number with Laplace or Gaussian noise (10)
truncated_moments           Lemma 3.2: the exponential of a quadratic, in Gaussian noise
categories                  one of k categories, reported as bits or at random (11)
few_points                  many reports with Gaussian noise at the cost of a few
log_space                   what keeps them finite far out
mean_job, histogram_job     the learning jobs
"""
