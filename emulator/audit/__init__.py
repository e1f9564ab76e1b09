"""Attack the privacy claim with everything a coalition may hold, many times, and say whether the claim still stands.

Read in this order:

- `worlds`: the claim, the two neighbouring inputs and the coalition; the round is planned by the protocol's own core.
- `programme`: what clients do, as it should be, and the ideal functionality that runs it for many rounds at once.
- `faults`: programmes with one planted fault each, to show that the audit sees it.
- `protocol`: the same rounds held by the production actors.
- `adversary`: what the coalition subtracts, and the one number per round that it guesses from.
- `bounds`: what the guesses prove, with confidence. `variance`: how much noise there is, on every line.
  `uniformity`: whether masked contributions look random.
- `curves`: what it saw, in few numbers. `finding`: the verdict.
- `report`, `picture`, `effort`, `command`: what a person sees.
"""
