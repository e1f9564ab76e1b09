"""One column from LDP reports: likelihoods as plain functions in log space (LDP paper 2021, 10 and 11).

families                    the laws of a clipped number, each described once
rectified                   one clipped number with Laplace or Gaussian noise, many reports at the cost of a few (10)
categories                  one of k categories, reported as bits or at random (11)
log_space                   what keeps them finite far out; Lemma 3.2
mean_job, histogram_job     the learning jobs
"""
