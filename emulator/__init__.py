"""Runs the production actors in virtual time and over real connections, to test, attack and measure them.

General layout
    counts      checks of data nodes, rows and drop-outs before a round starts
    ideal       draws a round's exact noisy sum directly: same encoding, same noise, no messages
    inexact     fast noise for emulation, which protects nobody
    provenance  the versions that figures depend on; a measurement resumes only with the same ones
    sim         actors in virtual time, over a model of machines, links and an MQTT broker
    trials      whole federations under faults and adversaries, checked against invariants: `dca emulate`
    swarm       a broker, M Compute nodes, N clients and a trainer over real connections: `dca swarm`
    scaling     how the cost of a round grows with N, d and M, and predictions for larger ones: `dca scaling`
    coalition   what a coalition learns, by attacks on the privacy claim: `dca audit`
    report      one HTML page for the result of any of these commands: `dca report`

`DESIGN.md` explains the methods and what the figures mean.
"""

PROJECT = "dca-proto"  # tells `dca` that this package is ours, not another one called emulator
