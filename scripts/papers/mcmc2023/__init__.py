"""Experiments on distributed Bayesian regression (Alparslan, Yıldırım and Birbil, ICML 2023), and beyond the paper's.

General layout:
    datasets, data            the data sets, with public bounds; as published and valid
    releases, fits            what nodes release; the methods on many repeats at once
    paper                     the figures that the paper prints
    tables                    Tables 1 and 2
    simulated                 simulated data, and the runs that Figures 2 and 4 are made of
    figure_2, figure_4        errors over ε and J; distance to the non-private posterior (MMD)
    timing                    Figure 3: time per iteration over d
    joint, sampler_checks     whether samplers draw from the posterior: joint-distribution tests; all of them
    calibration, efficiency   coverage of credible intervals; effective samples per second
"""
