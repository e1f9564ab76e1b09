"""The production actors on one machine: in virtual time and over real connections, tried, attacked and measured.

General layout
    counts      how many there may be of each in a round
    ideal       the exact noisy sum drawn directly: same encoding, same noise, no messages
    inexact     fast noise for emulation, which protects nobody
    results     a swarm's rounds and its run, typed: what JSON, terminal and report share
    provenance  what figures depend on, for files that an interrupted measurement goes on with
    sim         actors in virtual time, over a model of machines, links and an MQTT broker
    trials      whole federations under faults and adversaries, checked against eleven invariants: `dca emulate`
    collusion   what a coalition sees, and what noise is left against it: `dca emulate collude`
    swarm       a broker, M Compute nodes, N clients and a trainer over real connections: `dca swarm`
    scaling     how rounds grow with N, d and M, and what larger ones need: `dca scaling`
    audit       the attack on the privacy claim: `dca audit`
    report      one HTML page of what any of them wrote: `dca report`

`DESIGN.md` says how it is done and what the figures mean.
"""

PROJECT = "dca-proto"  # by this line `dca` recognises the package among others of its name
