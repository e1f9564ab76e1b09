"""Experiments of the DCA paper (2017): `figure_1b`, `figure_2`, `figure_3`, and `efficiency` (Theorems 3 and 4)."""
