"""The paper's samplers, as compiled JAX kernels that run many data sets at once, and adaSSP.

    kernel, sampler     what a sampler is; running one, compiled, over chains and problems
    distributions       Wishart, Gaussian and what else they draw
    residual_variance   the random walk over σ_y² that several share
    normal_x            Algorithm 1
    fixed_s             Algorithm 2
    bernstein_sheldon   the method of appendix C.1
    adassp              the ridge estimate of appendix C.2
    methods             samplers by name

The library itself samples the posterior of Algorithm 1 and of appendix B.2 by NUTS (`inference.models.linear.nodes`).
"""
