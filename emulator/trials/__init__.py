"""Trials run a whole federation under faults and adversaries, heal it, and check the promises of the protocol.

scenario          describes a trial as plain data
scenario_file     reads scenarios from TOML, checks and writes them
draw              draws a scenario from a seed
faults            lists all kinds of faults; tampering has those of the broker; fault applies one to a running trial
hostile           lists all kinds of adversaries; hostile_trainer has what trainers do; adversary defines a kind
federation        builds a scenario's actors, including hostile and faulty ones
world             runs the federation in virtual time, requests its rounds and keeps their results
trial             checks safety under faults, heals, then checks liveness
checkers          observe a trial, one checker for each invariant
outcome           is the result of a trial
shrink            reduces a failing scenario
sweep             runs many seeds on all cores
"""
