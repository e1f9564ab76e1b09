"""Experiments of the papers, repeated: many cells of plain work, and what all scripts that run them share.

General layout, in reading order:
    record          finished cells in a file, so that an interrupted experiment goes on where it was
    runner          cells on all cores with progress; options, tables, checks and exit codes of a script
    picture         figures and colours
    unnoised        rounds without noise, for what projection alone costs
    scaling_factor  Figure 1(b) of the DCA paper: what distribution costs in noise
    figure2         its Figure 2: regression on wine quality and abalone, as published and valid
    gdsc            its Figure 3: drug sensitivity, with `simulated_gdsc` for files of that format
    efficiency      its Theorems 3 and 4: how fast private estimates become as good as others
"""
