"""What travels: field types, messages, their one encoding, and the topics that carry them."""
