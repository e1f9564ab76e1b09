"""Synthetic rows from noisy marginals (Private-PGM: McKenna, Sheldon and Miklau 2019, arXiv 1901.09136).

grid            the cells of each column, and values from cells
structure       which pairs are counted: named ones, or a tree from a first round; how large the model is
release         the marginals of all rounds, with their noise
model           the graphical model by `mbi`, and rows from it
rows            synthetic rows, and their CSV file
comparison      how far synthetic rows are from the release, and from rows that are at hand
job             job `synthetic`
estimator       `PrivateSynthesizer`
"""
