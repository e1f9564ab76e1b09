"""Live swarms: production actors of every role over real MQTT connections, for learning jobs and for fleets of clients.

- `command`: `dca swarm`; `data`: what its clients hold; `learn`: one run of a learning job, checked, played and told
- `live`: a learning swarm in one process, of clients or of data nodes; `dropout`: clients that vanish; `rules`: what
  the actors accept
- `timeline`, `summary`: what a swarm's rounds were, as data; `progress`, `view`: as a person sees them
- `fleet`: plain rounds with tens of thousands of clients, and its parts: `fleet_options`, `fleet_command`,
  `fleet_summary`; `worker`: one of its processes; `workers`, `pipe`: how its parent speaks with them; `usage`: of
  processor time, memory and open files
"""
