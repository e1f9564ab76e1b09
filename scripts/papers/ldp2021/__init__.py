"""Experiments of the LDP paper (Kulkarni, Jälkö, Kaski and Honkela 2021), and beyond it.

General layout:
    column_fits                            reports of one column, and fits whose chains have mixed
    column_calibration, column_coverage    Figures 1, 10, 11: data sets from the prior; coverage, its band and picture
    click_distance                         Figure 2: distance to the posterior without privacy
    share_estimates                        Figures 3, 9: posterior means against projected point estimates
    regression_data, regression_reports    wine and Adult as published and valid; what each client reports
    chebyshev                              the sigmoid as a polynomial, and its mean under a normal law
    regression_methods, regression_work    the methods of Figures 4 and 5 on one repeat's rows; cells of all repeats
    regression_summary, regression_drawing comparisons in pairs, tables and checks; the picture
    regression_script                      what scripts/ldp_figure_4.py and scripts/ldp_figure_5.py share
"""
