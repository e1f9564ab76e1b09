"""Figure 2 of the DCA paper: private linear regression on three UCI data sets, in three settings.

General layout, in reading order:
    data          the data sets, their random splits, and what is taken to be public about them
    published     the experiments as the authors ran them: not private as claimed (faults and all)
    rounds        rounds of the ideal functionality, by a trusted aggregator, distributed, with perturbed inputs
    corrected     the published configuration with the faults put right
    ours          Algorithm 2 as this library has it
    paired        the last two over many draws of the noise, computed at once, and steps from one to the other
    experiment    cells, and what a cell computes
    summary       medians, intervals, tables
    checks        what the figure must show
    drawing       the figures
"""
