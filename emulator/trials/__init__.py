"""Trials: a whole federation under faults and adversaries, then healed, and checked against what the protocol promises.

scenario    everything that a trial is made of, as plain data; scenario_file: read from TOML and written back
checks      what a scenario may not say; example: one to start from; draw: scenarios drawn from a seed
faults      the list of all kinds of faults, with those of tampering; fault: one of them in a running trial
hostile     the list of all kinds of adversaries, with hostile_trainer; adversary: what each is and can spoil
router      what a malicious broker does with what passes through it
federation  the actors of a scenario, hostile and faulty ones among them
world       the federation in virtual time, with what was asked and what went wrong
trial       safety under faults, then healing, then liveness; compared with other runs where that is asked for
checkers    the eleven invariants, each as an observer of a trial
transitions which entries of the actors' tables it took
outcome     its result
shrink      a failing scenario made smaller; sweep: many seeds, over the processes of workers
display, command: what a person sees
"""
