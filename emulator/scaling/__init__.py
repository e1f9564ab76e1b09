"""How rounds scale: measured cell by cell, fitted, set beside the paper's Table 1, and predicted for larger ones.

General layout
    cell         one point of a sweep: N, d, M, backend, T and drop rate
    meter        what an actor used: core seconds, messages and bytes, around the production actors' `handle`
    floor        what the bare cryptography of a contribution costs
    footprint    the bytes that an object holds
    held         what was seen of one round, and what the rounds of a cell come to
    emulated     a population of production actors in virtual time, in one process or several in step
    account      what each of them saw of a round, put together
    live         the same over a real broker
    measure      runs one cell in a process of its own, and gathers the figures of its rounds
    paper        Table 1 of the paper, and the ratio to it
    fit          exponents of growth with their intervals
    calibration  what one client, one pair, one coordinate costs: non-negative least squares, and its error held out
    predict      what a round too large for this machine would take, and how many machines
    sweep        the cells that are not finished yet, cheapest first
    record       finished cells of a sweep, so that an interrupted one goes on
    view, picture, command: what a person sees
"""
