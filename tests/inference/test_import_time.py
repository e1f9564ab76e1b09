"""`inference` is quick to import; only its estimators and samplers need scikit-learn, ArviZ, JAX or matplotlib."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 2.5  # one second on an idle machine, of which scipy takes most
HEAVY = ("sklearn", "arviz", "jax", "numpyro", "matplotlib", "pooch", "pandas")
SAMPLERS = ("models", "mcmc")


def is_sampler(path: Path) -> bool:
    """One of those that fits and methods import when they are asked for."""
    return path.relative_to(ROOT / "inference").parts[0] in SAMPLERS and "\nimport jax" in path.read_text()


MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "inference").rglob("*.py")
    if path.stem not in ("classifiers", "estimator", "estimators") and not is_sampler(path)
)
PROBE = f"""
import importlib, sys, time
sys.modules.update(dict.fromkeys({HEAVY!r}))  # an import of any of them fails
started = time.process_time()
for name in {MODULES!r}:
    importlib.import_module(name)
print(time.process_time() - started)
"""


def test_all_of_inference_imports_soon_and_without_heavy_packages() -> None:
    """Processor time, so that a busy machine is not taken for a slow import; the best of three."""
    assert len(MODULES) > 15
    seconds = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, cwd=ROOT, check=False)
        assert done.returncode == 0, done.stderr
        seconds.append(float(done.stdout))
        if seconds[-1] < SECONDS_MAX:
            break
    assert min(seconds) < SECONDS_MAX, seconds
