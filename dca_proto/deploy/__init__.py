"""Writes what a federation of real machines needs: certificates, configurations, units (`dca federation deploy`)."""
