"""Trials: a whole federation under faults and adversaries, then healed, and held against what the protocol promises.

scenario    everything that a trial is made of, as plain data; read from TOML and written back
checks      what a scenario may not say; questions: the statistics that it may ask for; example: one to start from
draw        scenarios drawn from a seed
fault       one fault of a running trial; faults: the table of all kinds, from kills, outages and tampering
router      what a malicious broker does with what passes through it
hostile     clients and Compute nodes that do not keep to the protocol, and what each can spoil
cast        the federation of a scenario, hostile actors and planted mistakes among it
world       the federation in virtual time, with what was asked and what went wrong
trial       safety under faults, then healing, then liveness
checkers    the eleven invariants, each as an observer of a trial; wire: what messages say to those who look on
transitions which entries of the actors' tables it took
outcome     what came of it
examination one scenario against all eleven, compared with itself and with a neighbour where that is asked for
shrink      a failing scenario made smaller
sweep       many seeds, over the processes of workers
display, command: what a person sees
"""
