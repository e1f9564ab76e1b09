"""The paper's samplers, as compiled JAX kernels that run many data sets at once, and adaSSP.

    kernel              what a sampler is, what samplers draw, and the random walk over σ_y² that several share
    sampler             running one, compiled, over chains and problems; samplers by name
    normal_x            Algorithm 1
    fixed_s             Algorithm 2
    bernstein_sheldon   the method of appendix C.1
    adassp              the ridge estimate of appendix C.2

The library itself samples the posterior of Algorithm 1 and of appendix B.2 by NUTS (`inference.models.linear.nodes`).
"""
