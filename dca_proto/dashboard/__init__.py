"""`dca dashboard`: one live page for the actors of a federation, or for a swarm. It can be read, and nothing else.

Read in this order:

- `memory`: what the page remembers across a restart of an actor.
- `view`: turns statuses into the sections of the page, as blocks of `dca_proto.report`.
- `page`, with its files: renders the page, and what has changed of it. Its script only puts in what the server sends.
- `server`: the door: who may ask, for what, and what a browser may do with it.
"""
