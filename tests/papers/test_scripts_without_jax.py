"""Without JAX, which is optional, scripts that need it name what to install, in a line and not in a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from papers.__main__ import EXPERIMENTS

ROOT = Path(__file__).parents[2]
NAMED = ("ldp_", "mcmc_", "check_samplers")
NAMES = sorted(name for name in EXPERIMENTS if name.startswith(NAMED))
PROBE = f"""
import contextlib, io, json, runpy, sys, traceback
sys.modules["jax"] = None  # an import of it fails
sys.path.insert(0, {str(ROOT / "scripts")!r})  # as when a script is started by its path
found = {{}}
for name in {NAMES!r}:
    printed, code = io.StringIO(), None
    sys.argv = ["papers", name, "--quick"]
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
        try:
            runpy.run_path({str(ROOT / "scripts/papers")!r}, run_name="__main__")
        except SystemExit as stop:
            code = stop.code
        except BaseException:
            traceback.print_exc()
    found[name] = code, printed.getvalue()
print(json.dumps(found))
"""


def test_scripts_that_need_jax_name_the_missing_package() -> None:
    """One process for all of them."""
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == len(NAMES) >= 12
    for script, (code, output) in found.items():
        assert code == 2, (script, output)
        assert "pip install -e '.[samplers]'" in output, (script, output)
        assert "Traceback" not in output, (script, output)
