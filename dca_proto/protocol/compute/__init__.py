"""The Compute node: its actor, its round with the table of phases, and how all nodes agree on one set."""
