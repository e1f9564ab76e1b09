"""Attacks the privacy claim many times, with all the knowledge of a coalition, and reports whether the claim holds.

Read in this order:

- `worlds`: the claim, the two neighbouring inputs and the coalition; the protocol's own code plans the round.
- `programme`: the correct client, and the ideal functionality that runs it for many rounds at once.
- `faults`: clients with one planted fault each, to show that the audit detects it.
- `protocol`: runs the same rounds with the production actors.
- `adversary`: what the coalition subtracts, the one number per round that it guesses from, and the time this takes.
- `bounds`: what the guesses prove, and bounds on the noise along every line.
  `uniformity`: tests whether masked contributions look random.
- `finding`: the verdict, also as a sentence, and the record.
"""
