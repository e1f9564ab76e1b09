"""Median, quartiles and other quantiles of one column, from noisy counts in nested bins."""
