"""How long a test waits for what must come: only a test that hangs takes so long, on the busiest machine."""

PATIENCE_S = 120
