"""Experiments of the LDP paper (Kulkarni, Jälkö, Kaski and Honkela 2021), and beyond it.

General layout:
    column_fits                            reports of one column, and fits whose chains have mixed
    calibration                            Figures 1, 10, 11: data sets from the prior; coverage and its band
    click_distance                         Figure 2: distance to the posterior without privacy
    share_estimates                        Figures 3, 9: posterior means against projected point estimates
    regression_data, regression_reports    wine and Adult as published and valid; what each client reports
    chebyshev                              the sigmoid as a polynomial, and its mean under a normal law
    regression_methods, regression         the methods of Figures 4 and 5 on one repeat's rows; the two figures
    trust                                  beyond the paper: who adds the noise
"""
