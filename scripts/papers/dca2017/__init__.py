"""Experiments of the DCA paper (2017).

figure_1b       Figure 1(b): what distribution costs in noise
figure_2        Figure 2: regression on wine quality and abalone, as published and valid
figure_3        Figure 3: drug sensitivity, from `gdsc_files`, with `simulated_gdsc` for files of that format
efficiency      Theorems 3 and 4: how fast private estimates become as good as others
rounds          rounds of the ideal functionality; without noise, too, for what projection alone costs
"""
