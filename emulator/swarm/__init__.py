"""Live swarms: production actors of every role over real MQTT connections, in this process or in 1 to P others.

- `options`: a swarm's settings; `live`: the swarm; `host`: the actors of one process
- `synthetic`: runs rounds of a synthetic sum, with tens of thousands of clients
- `timeline`, `summary`: the swarm's rounds as data
- `usage`: what processes send and use
"""
