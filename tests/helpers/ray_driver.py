"""A program on a machine of a cluster that connects once, and then runs `dca` as its standard input asks.

python tests/helpers/ray_driver.py ADDRESS

A line of standard output says "connected". Each line of standard input is a JSON array: a folder, and a command's
arguments. Each further line of standard output that begins with "code" has a command's exit code.
"""

from __future__ import annotations

import json
import os
import sys

import ray

from dca_proto.cli import main

if __name__ == "__main__":
    for is_last in (False, False, True):  # a busy head may take longer than Ray waits
        try:
            ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
            break
        except Exception:
            if is_last:
                raise
    print("connected", flush=True)
    for line in sys.stdin:
        folder, *arguments = json.loads(line)
        os.chdir(folder)
        print("code", main(arguments), flush=True)
