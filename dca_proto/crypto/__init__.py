"""Keys, encryption, masks, and the ring in which masks cancel (DESIGN §2)."""
