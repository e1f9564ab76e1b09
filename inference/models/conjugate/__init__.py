"""Conjugate models of bounded data, from aggregated sufficient statistics (DCA paper, section 3.2; Theorem 3).

    model         of x in public bounds           conjugate prior            statistic of the round   released sum s
    bernoulli     x in {0, 1}                     θ ~ Beta(α, β)             sum                      Σ x
    categorical   x in {0, ..., K-1}              θ ~ Dirichlet(α)           histogram                counts
    poisson       x = 0, 1, 2, ...                λ ~ Gamma(a, rate b)       sum                      Σ x
    exponential   x >= 0 of density λ exp(-λ x)   λ ~ Gamma(a, rate b)       sum                      Σ x
    gaussian      x ~ N(μ, σ²)                    Normal-Inverse-Gamma       moments                  Σ x, Σ x²

Each client contributes one value, that of its first row; a mean of several values would not be a draw from the model.
Clients clip values outside the bounds, so wrong bounds cost accuracy but never privacy. Each round also counts the
values that are there, at no cost (`dca_proto.statistics.counting`), so the parameters are those of these values; a
warning says how many are missing. The models treat the sums as those of unclipped data. `Conjugate.outside` is the
share of the data that the fitted model expects outside the bounds; `clipping_matters` is True if that share is too
large for the number of values.

There are two ways from a noisy sum s̃ = s + e to a posterior:

    conjugate     s̃ is taken for s; an impossible s̃ (negative counts or variances) is replaced by the nearest possible
                  sum. This is the estimate of Theorem 3: right in the limit, but overconfident unless the noise is
                  small compared with the sampling error.
    noise-aware   the default: p(θ | s̃) = ∫ p(θ | s) p(s | s̃) ds, in the spirit of Bernstein and Sheldon (2018). In
                  these models the marginal p(s) = ∫ p(s | θ) p(θ) dθ has a closed form, so that

                      p(s | s̃) ∝ p(s) N(s̃; s, noise variance)

                  needs no central limit theorem and no alternation between s and θ. Draws come from a fine grid if s
                  has one or two coordinates, else from an exact Gibbs sampler over pairs of counts. θ given s is
                  conjugate. Without noise the result is the conjugate posterior.

`FAMILIES` lists the models by name. `posterior_of` computes the posterior from a round's sum, under any prior.
"""

from inference.models.conjugate.categorical import Categorical
from inference.models.conjugate.family import METHODS, Conjugate, Family, posterior_of
from inference.models.conjugate.job import FAMILIES, family
from inference.models.conjugate.scalar import Bernoulli, Exponential, Gaussian, Poisson

__all__ = ["FAMILIES", "METHODS", "Bernoulli", "Categorical", "Conjugate", "Exponential", "Family", "Gaussian",
           "Poisson", "family", "posterior_of"]  # fmt: skip
