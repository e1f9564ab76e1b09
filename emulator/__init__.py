"""The production actors on one machine: live swarms, and the ideal functionality to compare them with.

General layout
    job       a learning job's budget and rounds, for whoever drives it
    ideal     the exact noisy sum drawn directly: same encoding, same noise, no messages
    swarm     a broker, M Compute nodes, N clients and a trainer as real actors over real connections: `dca swarm`
"""
