"""Thin shells around the pure core: transports, durable stores, the asyncio runner and the broker launcher."""
