"""Hostile input for live actors: MQTT packets, topics, parts and messages, made from a seed."""
