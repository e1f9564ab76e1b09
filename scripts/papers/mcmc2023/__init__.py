"""Experiments on distributed Bayesian regression (Alparslan, Yıldırım and Birbil, ICML 2023), and beyond the paper's.

General layout:
    datasets                  the data sets, with public bounds
    data, releases, fits      real data as published and valid; what nodes release; the methods on many repeats at once
    paper                     the figures that the paper prints
    tables                    Tables 1 and 2
    simulated                 simulated data, and the runs that Figures 2 and 4 are made of
    figure_2, figure_4        errors over ε and J; distance to the non-private posterior (MMD)
    timing                    Figure 3: time per iteration over d
    joint, subjects           whether samplers draw from the posterior (joint-distribution tests); what is tested
    sampler_checks            all of these tests, over sizes and noise
    calibration, efficiency   coverage of credible intervals; effective samples per second
    textbook                  the posterior as a textbook writes it
"""
