"""Attacks the privacy claim with everything a coalition may hold, many times, and reports whether the claim holds.

Read in this order:

- `worlds`: the claim, the two neighbouring inputs and the coalition; the round is planned by the protocol's own core.
- `programme`: what clients do, as it should be, and the ideal functionality that runs it for many rounds at once.
- `faults`: programmes with one planted fault each, to show that the audit sees it.
- `protocol`: the same rounds held by the production actors.
- `adversary`: what the coalition subtracts, the one number per round that it guesses from, and how long that takes.
- `bounds`: what the guesses prove, and how much noise there is on every line, with confidence.
  `uniformity`: whether masked contributions look random.
- `finding`: the verdict, also as a sentence, and the record; `command`. `emulator.report.audit` has the table.
"""
