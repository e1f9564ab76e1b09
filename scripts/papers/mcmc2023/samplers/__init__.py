"""The paper's samplers as compiled JAX kernels that run many data sets at once; and adaSSP.

The library itself samples the posterior of Algorithm 1 and of appendix B.2 by NUTS (`inference.models.linear.nodes`).
"""
