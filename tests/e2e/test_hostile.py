"""A short run of scripts/hostile_test.py: an enrolled client that means harm, against a live federation."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_hardening_a_hostile_client_stops_no_round_and_no_process(mosquitto_installed: None) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command is not installed")
    command = (sys.executable, "scripts/hostile_test.py", "--minutes", "0.1", "--clients", "8", "--json", "-")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    figures = json.loads(done.stdout)
    assert (done.returncode, figures["failed"]) == (0, []), done.stderr
    assert figures["rounds_under_attack"] >= 1
    assert figures["attacks"]["messages"] > 100
