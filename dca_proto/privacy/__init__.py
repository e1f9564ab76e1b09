"""Privacy of a round: its cost, the noise it needs, and the budgets that limit it (PRIVACY.md)."""
