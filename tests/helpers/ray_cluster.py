"""A cluster of two nodes of Ray on this machine: prints its address and that for clients, and lives until told to end.

python tests/helpers/ray_cluster.py < pipe
"""

from __future__ import annotations

import os
import sys

PATIENCE_S = 180  # a busy machine takes longer than Ray's defaults of 10 to 60 s
for name in (
    "CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S",
    "gcs_server_port_wait_time_s",
    "gcs_server_request_timeout_seconds",
    "worker_register_timeout_seconds",
):
    os.environ[f"RAY_{name}"] = str(PATIENCE_S)
os.environ |= {"RAY_health_check_timeout_ms": str(1000 * PATIENCE_S)}
os.environ |= {"RAY_worker_niceness": "0"}  # by default 15: a busy machine would let work wait

from ports import free_port  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402


def main() -> None:
    """Start it, and end it with standard input."""
    port = free_port()
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "ray_client_server_port": port, "wait": False}
    )
    cluster.add_node(num_cpus=1, wait=False)
    cluster.wait_for_nodes(PATIENCE_S)
    print(cluster.address, f"ray://127.0.0.1:{port}", flush=True)
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
