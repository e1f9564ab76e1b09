"""A Gaussian mixture with conjugate priors, fitted by expected sufficient statistics: `model` and `job`."""
