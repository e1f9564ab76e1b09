"""Conjugate models of bounded data, from aggregated sufficient statistics (DCA paper, section 3.2; Theorem 3).

    model         of x in public bounds           conjugate prior            statistic of the round   released sum s
    bernoulli     x in {0, 1}                     θ ~ Beta(α, β)             sum                      Σ x
    categorical   x in {0, ..., K-1}              θ ~ Dirichlet(α)           histogram                counts
    poisson       x = 0, 1, 2, ...                λ ~ Gamma(a, rate b)       sum                      Σ x
    exponential   x >= 0 of density λ exp(-λ x)   λ ~ Gamma(a, rate b)       sum                      Σ x
    gaussian      x ~ N(μ, σ²)                    Normal-Inverse-Gamma       moments                  Σ x, Σ x²

Each client gives one value, that of its first row: a mean of several would be no draw from the model. A value outside
the bounds is clipped by its own client, so that wrong bounds cost accuracy and never privacy. One that is missing
counts as the bounds' middle, and in no category. The models take the sums for those of unclipped data:
`FamilyResult.outside` says how much of the data the fitted model itself expects outside the bounds, and
`clipping_matters` whether that is too much for so many values.

There are two ways from a noisy sum s̃ = s + e to a posterior:

    conjugate     s̃ is taken for s, the nearest possible sum where it is impossible (negative counts or variances). This
                  is the estimate of Theorem 3: right in the limit, and overconfident wherever the noise is not small
                  beside the sampling error.
    noise-aware   the default: p(θ | s̃) = ∫ p(θ | s) p(s | s̃) ds, in the spirit of Bernstein and Sheldon (2018). In
                  these models the marginal p(s) = ∫ p(s | θ) p(θ) dθ has a closed form, so that

                      p(s | s̃) ∝ p(s) N(s̃; s, noise variance)

                  needs no central limit theorem and no alternation between s and θ: it is drawn from on a fine grid
                  where s has one or two coordinates, and by an exact Gibbs sampler over pairs of counts where it has
                  more. θ given s is conjugate. Without noise it is the conjugate posterior.

`FAMILIES` names the models, `family_job` is the learning job of one round, and `posterior_of` what another prior makes
of its sum.
"""

from inference.models.conjugate.categorical import Categorical
from inference.models.conjugate.family import METHODS, Family, FamilyResult, Release, posterior_of
from inference.models.conjugate.job import FAMILIES, family, family_job
from inference.models.conjugate.scalar import Bernoulli, Exponential, Gaussian, Poisson

__all__ = ["FAMILIES", "METHODS", "Bernoulli", "Categorical", "Exponential", "Family", "FamilyResult", "Gaussian",
           "Poisson", "Release", "family", "family_job", "posterior_of"]  # fmt: skip
