"""Live swarms: production actors of every role over real MQTT connections, in this process or in 1 to P others.

- `command`: `dca swarm`; `options`: a swarm's settings; `live`: the swarm; `host`: the actors of one process
- `learn`: runs a learning job on given data; `synthetic`: runs rounds of a synthetic sum, with tens of thousands of
  clients
- `timeline`, `summary`: the swarm's rounds as data; `progress`: what it prints while it runs
- `usage`: what processes send and use
"""
