"""Measures how rounds scale with N, d and M, compares them with the paper's Table 1, and predicts larger rounds.

cell        one size of a round, the cells of a sweep, and the paper's Table 1
figures     the measurements of a round, and the figures of a cell
emulated    measures production actors in virtual time, in one process or several in lockstep
measure     measures one cell in a process of its own, also over a real broker; times the bare cryptography
costs       fits exponents of growth, and the cost of a client, a pair, a coordinate; tests them on held-out cells
predict     predicts what a round too large for this machine takes, and how many machines it needs
record      the result of a sweep, and the journal from which an interrupted sweep resumes
"""
