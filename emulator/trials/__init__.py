"""Trials: a whole federation under faults and adversaries, then healed, and held against what the protocol promises.

scenario    everything that a trial is made of, as plain data; read from TOML and written back
checks      what a scenario may not say
draw        scenarios drawn from a seed
fault       one fault of a running trial; faults: the table of all kinds
hostile     clients and Compute nodes that do not keep to the protocol, and what each can spoil
cast        the federation of a scenario, hostile actors and planted mistakes among it
world       the federation in virtual time, with what was asked and what went wrong
trial       safety under faults, then healing, then liveness
outcome     what came of it
"""
