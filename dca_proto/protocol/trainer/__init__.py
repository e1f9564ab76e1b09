"""The trainer: its actor, its round with the table of phases, and how it handles answers and failures."""
