"""The protocol as pure state machines: no I/O, no clock, no hidden randomness. Start with `play.py`."""
