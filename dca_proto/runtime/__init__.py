"""Thin shells around the protocol's pure state machines: transports, stores, the asyncio runner, the broker."""
