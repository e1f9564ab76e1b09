"""Experiments of the DCA paper (2017).

scaling_factor  Figure 1(b): what distribution costs in noise
figure2         Figure 2: regression on wine quality and abalone, as published and valid
gdsc            Figure 3: drug sensitivity, with `simulated_gdsc` for files of that format
efficiency      Theorems 3 and 4: how fast private estimates become as good as others
unnoised        rounds without noise, for what projection alone costs
"""
