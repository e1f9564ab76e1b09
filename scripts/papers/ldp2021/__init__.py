"""Experiments of the LDP paper (Kulkarni, Jälkö, Kaski and Honkela 2021), and beyond it.

General layout:
    column_fits                            reports of one column, and fits whose chains have mixed
    calibration                            Figures 1, 10, 11: coverage of data sets from the prior
    click_distance                         Figure 2: distance to the posterior without privacy
    share_estimates                        Figures 3, 9: posterior means against projected point estimates
    regression, and what it is made of     Figures 4 and 5: wine and Adult, what clients report, the methods
    trust                                  beyond the paper: who adds the noise
"""
