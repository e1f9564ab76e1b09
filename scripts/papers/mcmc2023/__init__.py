"""Experiments on distributed Bayesian regression (Alparslan, Yıldırım and Birbil, ICML 2023), and beyond the paper's.

General layout:
    power_plant, bike, air_quality  the data sets, with public bounds
    data, releases, fits      real data as published and valid; what nodes release; the methods on many repeats at once
    paper                     the figures that the paper prints
    tables, summary, drawing  Tables 1 and 2: cells; means, intervals and checks; the picture
    simulated                 simulated data, and the runs that Figures 2 and 4 are made of
    figure2, figure4          errors over ε and J; distance to the non-private posterior (MMD)
    timing                    Figure 3: time per iteration over d
    joint, subjects           whether samplers draw from the posterior (joint-distribution tests); what is tested
    sampler_checks            all of these tests, over sizes and noise
    calibration, efficiency   coverage of credible intervals; effective samples per second
    kernels                   which methods are samplers of centred features; R̂ of many problems
"""
