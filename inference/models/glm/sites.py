"""Names of the sites that regression models draw, in their own units, and of draws in the columns' units."""

from __future__ import annotations

THETA, ALPHA, ROOT = "theta", "alpha", "correlation_root"
COEFFICIENTS, INTERCEPT, CORRELATION = "coefficients", "intercept", "feature_correlation"
"""What stands in the place of these in own units."""
FEATURE_SD, FEATURE_MEAN, RESIDUAL_SD = "feature_sd", "feature_mean", "residual_sd"
"""The same in both."""
