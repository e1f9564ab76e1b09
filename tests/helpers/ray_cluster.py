"""A cluster of two nodes of Ray on this machine: prints its address and that for clients, and lives until told to end.

python tests/helpers/ray_cluster.py < pipe
"""

from __future__ import annotations

import os
import socket
import sys

os.environ["RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S"] = "180"  # a busy machine takes longer than the 30 s of default

from ray.cluster_utils import Cluster


def main() -> None:
    """Start it, and end it with standard input."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "ray_client_server_port": port})
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    print(cluster.address, f"ray://127.0.0.1:{port}", flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
