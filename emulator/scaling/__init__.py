"""How rounds scale: measured cell by cell, fitted, compared with the paper's Table 1, and predicted for larger ones.

cell        one size of a round, the cells of a sweep, and the paper's Table 1
held        what was seen of one round, and the figures that the rounds of a cell come to
emulated    a population of production actors in virtual time, in one process or several in step
measure     runs one cell in a process of its own, also over a real broker; the bare cryptography of a contribution
costs       exponents of growth, and what one client, one pair, one coordinate costs, with its error held out
predict     what a round too large for this machine would take, and how many machines
record      the result of a sweep, and its finished cells, so that an interrupted one goes on
command     what is asked, and progress; `emulator.report.scaling` has the tables
"""
