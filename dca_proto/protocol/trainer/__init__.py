"""The trainer: its actor, its round with the table of phases, and what it makes of answers and failures."""
