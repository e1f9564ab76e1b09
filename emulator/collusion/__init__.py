"""What a coalition sees and learns, in rounds of the production actors in virtual time.

    coalition    who works together, in what kind of round, and whether the claim speaks of them
    members      what colluding clients and Compute nodes run in place of the production actor
    view         what the coalition's machines hold and what passes the broker, written down while a round runs
    rounds       one round after another of real actors, in one of two worlds that differ in one client's data
    dependence   whether what it sees depends on the data beyond the private sum
    finding      the noise that it cannot remove, exactly and measured; a verdict, also as a sentence; and the record
    command      `dca emulate collude`; `emulator.report.collusion` has the table

`emulator.audit` attacks the claim of a round's sum with millions of draws; this one attacks the messages around it.
"""
