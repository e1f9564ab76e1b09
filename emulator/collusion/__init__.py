"""Finds out what a coalition sees and learns, in rounds of the production actors in virtual time.

    coalition    the members of a coalition, the round, and whether the claim covers them
    members      the actors that colluding clients and Compute nodes run
    view         records what the coalition's machines store and what passes the broker
    rounds       runs rounds of real actors, in one of two worlds that differ in one client's data
    dependence   tests whether the view depends on the data beyond the private sum
    finding      the noise that the coalition cannot remove, by the plan and measured; the verdict; and the record

`emulator.audit` attacks the released sum with millions of draws; this package attacks the messages around it.
"""
