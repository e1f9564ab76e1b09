"""Live swarms: production actors of every role over real MQTT connections, in this process or in 1 to P others.

- `command`: `dca swarm`; `options`: what a swarm is made of; `live`: the swarm; `host`: the actors of one process;
  `dropout`: clients that vanish
- `data`: what its clients hold; `learn`: one run of a learning job, checked, played and told; `synthetic`: plain rounds
  of a made-up sum, with tens of thousands of clients
- `timeline`, `summary`: what a swarm's rounds were, as data; `progress`: what it prints while it runs
- `usage`: of processor time, memory and open files
"""
