"""The embedded broker, for machines without mosquitto: rumqttd, from the package iotcore, as a process.

    python -m dca_proto.runtime.embedded FILE

It accepts every connection of this machine, without TLS or passwords: it is for trials. It speaks MQTT 3.1.1. It exits
at the end of its standard input, so it never outlives the process that started it. It keeps nothing on disk; while it
runs, it keeps the last messages of each topic filter for who is away. A new subscriber to a filter gets at most 100 of
its retained messages, and none when it connects again. The protocol's receipts, resends and questions make up for what
is lost.
"""

from __future__ import annotations

import logging
import os
import sys
import threading

from iotcore.iotcore import IotCoreBroker

from dca_proto.runtime.parts import PART_BYTES_DEFAULT

_CONNECTIONS_MAX = 100_000
_SEGMENT_BYTES, _SEGMENTS = 16 << 20, 8  # for each topic filter; taken as messages come
_UNACKNOWLEDGED_MAX = 1000


def configuration(host: str, port: int, packet_bytes_max: int = PART_BYTES_DEFAULT + 1024) -> str:
    """Return rumqttd's configuration: one listener, which takes packets of that size."""
    return f"""id = 0
[router]
id = 0
max_connections = {_CONNECTIONS_MAX}
max_outgoing_packet_count = 200
max_segment_size = {_SEGMENT_BYTES}
max_segment_count = {_SEGMENTS}
[v4.1]
name = "v4"
listen = "{f"[{host}]" if ":" in host else host}:{port}"
next_connection_delay_ms = 0
[v4.1.connections]
connection_timeout_ms = 20000
max_payload_size = {packet_bytes_max}
max_inflight_count = {_UNACKNOWLEDGED_MAX}
"""


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    """Run the broker of the configuration file that the command line names."""
    logging.basicConfig(level=logging.ERROR, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("rumqttd").setLevel(logging.CRITICAL)  # it calls each message an error
    threading.Thread(target=_end_with_parent, daemon=True).start()
    broker = IotCoreBroker(config_path=sys.argv[1])
    try:
        broker.check_ports()  # rumqttd itself would end with a dump of its threads
    except OSError as error:
        print(f"the port cannot be used: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # a thread waits for standard input
    broker.run_forever()


if __name__ == "__main__":
    main()
