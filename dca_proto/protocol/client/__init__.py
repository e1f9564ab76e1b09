"""The client: its actor, its rounds with their table of phases, its consent, and its messages."""
