"""Experiments of many cells of plain work, and what all scripts that run them share.

    record      finished cells in a file, so that an interrupted experiment goes on where it was
    runner      cells on all cores with progress; options, tables, checks and exit codes of a script
    picture     figures and colours
    student     half-widths of Student's intervals

The papers' own experiments are in `scripts/papers`, which is no part of the wheel.
"""
