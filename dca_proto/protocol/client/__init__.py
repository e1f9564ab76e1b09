"""The client: its actor, its round with the table of phases, its consent, and what it sends."""
