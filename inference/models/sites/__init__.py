"""Sites: coefficients that differ between data nodes, as between hospitals, from each one's own noisy release.

evidence    the normal model of sites: meta-analysis, REML, and the posterior on a grid (NumPy and SciPy alone)
linear      what releases of the statistic "regression" say of each site
logistic    what releases of scores say of each site
model       the NumPyro model, with the noise at each site's own coefficients (needs the extra `samplers`)
result      the posterior in the columns' own units, with the table of sites
job         the learning jobs `sites-regression` and `sites-logistic`
"""

from inference.models.sites.evidence import Evidence, Heterogeneity, fixed, heterogeneity, posterior, restricted

__all__ = ["Evidence", "Heterogeneity", "fixed", "heterogeneity", "posterior", "restricted"]
