"""The trainer: its actor, its requests, its rounds with their table of phases, answers and failures."""
