"""The wire format: field types, messages, their encoding, and MQTT topics."""
