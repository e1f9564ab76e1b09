"""Live swarms: production actors of every role over real MQTT connections, in this process or in 1 to P others.

- `command`: `dca swarm`; `options`: what a swarm is made of; `live`: the swarm; `host`: the actors of one process
- `learn`: one run of a learning job on given data; `synthetic`: plain rounds of a made-up sum, with tens of thousands
  of clients
- `timeline`, `summary`: what a swarm's rounds were, as data; `progress`: what it prints while it runs
- `usage`: what processes send and use
"""
