"""The Compute node: its actor, its rounds with their table of phases, and the agreement on one set."""
