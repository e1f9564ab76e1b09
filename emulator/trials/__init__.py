"""Trials: a whole federation under faults and adversaries, then healed, and checked against what the protocol promises.

scenario    everything that a trial is made of, as plain data
scenario_file   scenarios read from TOML, checked and written; draw: scenarios drawn from a seed
faults      the list of all kinds of faults, with those of tampering; fault: one of them in a running trial
hostile     the list of all kinds of adversaries, with hostile_trainer; adversary: what each is and can spoil
federation  the actors of a scenario, hostile and faulty ones among them
world       the federation in virtual time, with its router, what was asked and what went wrong
trial       safety under faults, then healing, then liveness; compared with other runs where that is asked for
checkers    the eleven invariants, each as an observer of a trial
outcome     its result
shrink      a failing scenario made smaller; sweep: many seeds, over the processes of workers
display, command: what a person sees
"""
