"""Keys, seals, masks, and the ring that masks add up in (DESIGN §2)."""
