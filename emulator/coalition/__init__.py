"""Finds out what a coalition learns about one client, beyond what a round's claim allows.

Two sources run the rounds. The ideal functionality draws the released sums of millions of rounds; real actors in
virtual time also send the messages around them. One adversary guesses from what is left of the sum.

Read in this order:

- `worlds`: the claim, the coalition, the two neighbouring inputs; the protocol's own code plans the round.
- `programme`: the correct client, and the ideal functionality that runs it for many rounds at once.
- `faults`: clients with one planted fault each, to show that the attack detects it.
- `members`, `view`, `actors`: real actors, those of the coalition among them, and the view that its machines have.
- `adversary`: what the coalition subtracts, the one number per round that it guesses from, and the time this takes.
- `bounds`: what the guesses prove, and bounds on the noise along every line.
- `uniformity`, `dependence`: whether masked contributions look random, and whether a view depends on the data.
- `finding`: the evidence, the verdict and the record; `words`: both in plain words.
"""
