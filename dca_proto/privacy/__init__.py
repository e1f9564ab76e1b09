"""What a round costs, how much noise it needs, and what each actor allows (PRIVACY.md)."""
