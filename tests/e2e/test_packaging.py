"""The wheel holds the packages alone, and each extra does its work in an environment of its own, far from the checkout.

Each environment is new. It has the wheel, and of the libraries that are installed here those alone that the extra asks
for, themselves or through others. A device's are installed as `pip` is set up on this machine; skipped visibly where
that reaches no index.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("packaging")]
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OF_DEVELOPERS = ("test", "release")
PACKAGES = ("dca_proto", "emulator", "inference")

DEVICE = """
from dca_proto.protocol.facts import RoundCompleted
from dca_proto.testing import TestFederation
actors = TestFederation(5, 3)
network = actors.network()
network.deliver()
network.command(actors.trainer_identity.id, actors.request())
network.advance(network.now_ms + 5000)
[done] = network.reported(RoundCompleted)
assert done.aggregate.contributors == 5 and done.aggregate.private
"""
BROKER = """
import asyncio, random
from pathlib import Path
from dca_proto.runtime.broker import BrokerOptions, launch_broker
from dca_proto.runtime.mqtt import MqttTransport
from dca_proto.runtime.settings import BrokerSettings
async def main():
    async with launch_broker(Path("broker"), BrokerOptions(kind="embedded")) as broker:
        client = MqttTransport(BrokerSettings(url=broker.url), "client", ("ward",), rng=random.Random(1))
        await client.open()
        await client.publish("ward", b"heard")
        assert (await client.inbox.take()).payload == b"heard"
        await client.close()
asyncio.run(asyncio.wait_for(main(), 120))
"""
INFERENCE = """
import numpy as np
from dca_proto.privacy.budget import Budget
from dca_proto.jobs.job import JobTerms
from emulator.ideal import IdealSwarm
from inference.datasets import load
from inference.estimators import PrivateLinearRegression
data = load("diabetes", ["bmi", "bp"])
terms = JobTerms(epsilon=4.0, delta=1e-5, clients=len(data.y), tolerate=44, computes=(bytes(16), bytes([1]) * 16))
rounds = IdealSwarm(data.rows, data.schema.columns, terms)
model = PrivateLinearRegression(schema=data.schema).fit(rounds)
assert model.private_ and model.epsilon_ <= 4.0
assert np.corrcoef(model.predict(data.X), data.y)[0, 1] > 0.3
"""
SAMPLERS = """
import arviz, numpy as np
from dca_proto.aggregate import RoundRequest
from dca_proto.protocol.wire.kinds import LdpReport
from dca_proto.privacy.budget import Budget
from dca_proto.jobs.job import JobTerms
from emulator.ideal import IdealSwarm
from inference.bounds import Interval
from inference.models.fit import column
ages = np.random.default_rng(1).normal(50, 10, size=(2000, 1))
terms = JobTerms(epsilon=4.0, delta=1e-5, clients=2000, tolerate=0, computes=())
parameters = {"columns": ["age"], "centre": [50.0], "scale": [50.0], "bound": [1.0]}
request = RoundRequest("sum", parameters, rows_max=1, kind=LdpReport("grid-laplace"))
released = IdealSwarm(ages, ("age",), terms).run_round(request)
found = column(released, warmup=300, draws=300, seed=1)
found.inference_data().to_netcdf("draws.nc")
mean = arviz.from_netcdf("draws.nc").posterior["mean"].values
assert mean.shape == (4, 300) and abs(mean.mean() - 50) < 6
"""
TRANSPORT = """
import random
from dca_proto.runtime.mqtt import MqttTransport
from dca_proto.runtime.settings import BrokerSettings
MqttTransport(BrokerSettings(url="mqtt://localhost", {settings}), "a" * 32, (), rng=random.Random(1))
"""
FLEET = (
    TRANSPORT.format(settings='client="fleet", version="5"')
    + """
from dca_proto.runtime.packets5 import Codec5
packet = Codec5().publish(1, "dca/topic", b"payload", False, 60)
assert packet[0] >> 4 == 3 and packet.endswith(b"payload")
"""
)
PROXY = TRANSPORT.format(settings='proxy="socks5://localhost"') + "import socks; socks.SOCKS5"
COMMANDS = {
    "cli": ["dca federation init ward --computes 3 --clients 3", "dca emulate sweep --seeds 0..2"],
    "broker": ["dca broker --help"],
    "dashboard": ["dca dashboard --help"],
    "deploy": ["dca federation deploy hearts --hosts berlin=127.0.0.1,paris=127.0.0.2"],
    "audit": [
        "dca audit --rounds 4000 --plot audit.png --json audit.json",
        "dca report audit.json",
        "dca audit --help",
    ],
    "accounting": ["dca account --clients 500 --also laplace:0.1 --plot account.png"],
    "full": ["dca swarm --broker embedded --output run", "dca report run/result.json"],
}
PROGRAMS = {
    "": DEVICE,
    "cluster": "import ray; import dca_proto.engine.cluster",
    "docs": "import mkdocs, mkdocstrings",
    "broker": BROKER,
    "fleet": FLEET,
    "proxy": PROXY,
    "postgres": "import psycopg, dca_proto.runtime.sources.postgres; assert psycopg.pq.__impl__ == 'binary'",
    "metrics": "import dca_proto.runtime.metrics",
    "dashboard": "import dca_proto.dashboard.server",
    "inference": INFERENCE,
    "synthetic": "import inference.models.synthetic.job; from mbi import Domain; assert Domain(['a'], [2]).size() == 2",
    "samplers": SAMPLERS,
}
FILES = {
    "cli": ["ward/federation.toml"],
    "audit": ["audit.png", "audit.html"],
    "accounting": ["account.png"],
    "samplers": ["draws.nc"],
    "full": ["run/result.json", "run/coefficients.png"],
}
"""What each command or program must have written."""


def run(folder: Path, *arguments: str | Path) -> str:
    """What a command printed, as it runs without this checkout on Python's path. Fails with it where it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        arguments, cwd=folder, env=environment, text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("index")
    arguments = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder), "setuptools>=77"]
    download = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if download.returncode != 0:
        pytest.skip(f"pip reaches no index: {download.stderr.strip().splitlines()[-1]}")


@pytest.fixture(scope="session")
def built(index: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel that is made of it.

    Built from a copy of the checkout, for a build writes into its source, and other tests may build at the same time.
    """
    folder = tmp_path_factory.mktemp("dist")
    copy = tmp_path_factory.mktemp("source") / "checkout"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info"))
    run(folder, sys.executable, "-m", "build", "--outdir", folder, copy)
    return folder


def test_the_wheel_holds_the_packages_and_the_licence_alone(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        information = f"dca_proto-{PROJECT['version']}.dist-info"
        assert opened.read(f"{information}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
        assert b"\nLicense-Expression: Apache-2.0\n" in opened.read(f"{information}/METADATA")
    assert {name.partition("/")[0] for name in names} == {*PACKAGES, information}
    ours = {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*")}
    kinds = (
        ".py",
        ".md",
        "/py.typed",
        "/page.html",
        "/blocks.html",
        "/page.css",
        "/page.js",
        "/example.toml",
        ".template",
        ".service",
        ".yaml",
        "/templates/hardening",
    )
    ours = {name for name in ours if name.endswith(kinds)}
    assert {name for name in names if not name.startswith(information)} == ours
    assert {f"{package}/{name}" for package in PACKAGES for name in ("py.typed", "DESIGN.md")} < ours


def test_the_source_distribution_has_tests_and_scripts_too(built: Path) -> None:
    [archive] = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "mkdocs.yml",
        "notebooks/survival_curve.py",
        "scripts/run",
        "tests/test_tidy.py",
        "tests/emulator/trials/seeds.toml",
    } < names
    assert not {name for name in names if "__pycache__" in name or name.startswith((".", "run/", "build/"))}


def needed(requirement: str, found: dict[str, Distribution]) -> None:
    """Add the installed library that a requirement stands for, and all that it requires, by requirement."""
    wanted = Requirement(requirement)
    name = f"{wanted.name} {sorted(wanted.extras)}"
    if name in found:
        return
    found[name] = distribution(wanted.name)
    assert wanted.specifier.contains(found[name].version, prereleases=True), f"{requirement}: {found[name].version}"
    for line in found[name].requires or []:
        marker = Requirement(line).marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *wanted.extras)):
            needed(line, found)


def link(requirements: list[str], packages: Path) -> None:
    """Link the libraries of this environment that the requirements stand for into a folder of packages."""
    found: dict[str, Distribution] = {}
    for requirement in requirements:
        needed(requirement, found)
    for library in found.values():
        for top in {file.parts[0] for file in library.files or []} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(library.locate_file(top))).resolve())


def requirements_of(extra: str) -> list[str]:
    """Those of the project with an extra, of which some name others of its extras."""
    lines = PROJECT["dependencies"] + (PROJECT["optional-dependencies"][extra] if extra else [])
    own = [Requirement(line) for line in lines if Requirement(line).name == PROJECT["name"]]
    others = [line for line in lines if Requirement(line).name != PROJECT["name"]]
    return [*others, *(line for one in own for name in sorted(one.extras) for line in requirements_of(name))]


@pytest.mark.parametrize(
    "extra", ["", *(name for name in PROJECT["optional-dependencies"] if name not in OF_DEVELOPERS)]
)
def test_an_extra_alone_does_its_work(extra: str, built: Path, tmp_path: Path) -> None:
    """pip finds nothing missing or in conflict; then something that one would install the extra for."""
    assert extra in {*COMMANDS, *PROGRAMS}, "an extra that nobody uses here"
    programs, work = tmp_path / "environment" / "bin", tmp_path / "work"
    work.mkdir()
    run(work, sys.executable, "-m", "venv", "--without-pip", tmp_path / "environment")
    pip = (sys.executable, "-m", "pip", "--python", programs / "python")
    [wheel] = built.glob("*.whl")
    if extra:
        [packages] = (tmp_path / "environment").glob("lib/python*/site-packages")
        link(requirements_of(extra), packages)
    run(work, *pip, "install", "-q", "--no-compile", *(["--no-deps"] if extra else []), wheel)
    run(work, *pip, "check")
    for command in COMMANDS.get(extra, []):
        name, *arguments = command.split()
        run(work, programs / name, *arguments)
    if extra in PROGRAMS:
        run(work, programs / "python", "-c", PROGRAMS[extra])
    assert [name for name in FILES.get(extra, []) if not (work / name).is_file()] == []
    where = run(work, programs / "python", "-c", "import dca_proto; print(dca_proto.__file__)")
    assert Path(where.strip()).is_relative_to(tmp_path), "the installed packages were tried"


def test_the_readme_can_be_followed_with_the_wheel_alone(built: Path, tmp_path: Path) -> None:
    """In an empty environment; a reader who has no checkout types `dca` in place of `scripts/run`."""
    programs = tmp_path / "environment" / "bin"
    run(tmp_path, sys.executable, "-m", "venv", "--without-pip", tmp_path / "environment")
    [packages] = (tmp_path / "environment").glob("lib/python*/site-packages")
    link(requirements_of("full"), packages)
    [wheel] = built.glob("*.whl")
    run(tmp_path, sys.executable, "-m", "pip", "--python", programs / "python", "install", "-q", "--no-deps", wheel)
    done = run(
        ROOT,
        *("env", f"DCA_PROGRAMS={programs}", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *("-m", "long", "tests/e2e/test_documents.py", "-k", "test_the_readme_can_be_followed_to_the_letter"),
    )
    assert "1 passed" in done
    assert "skipped" not in done


def test_a_release_is_made_of_a_commit(index: None, tmp_path: Path) -> None:
    """Its files are checked and complete; the bills of materials name what an installation has, and no tool."""
    if not (ROOT / ".git").exists():
        pytest.skip("a release is made of a commit, and this is no clone")
    folder = tmp_path / "dist"
    printed = run(tmp_path, "env", f"PYTHON={sys.executable}", ROOT / "scripts" / "release", folder)
    assert printed.count("PASSED") == 2, "by twine, the wheel and the source distribution"
    stem = f"dca_proto-{PROJECT['version']}"
    bills = [f"{stem}.cdx.json", f"{stem}-full.cdx.json"]
    made = {f"{stem}-py3-none-any.whl", f"{stem}.tar.gz", *bills}
    assert {path.name for path in folder.iterdir()} == {*made, "SHA256SUMS"}
    sums = dict(line.split("  ")[::-1] for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert sums == {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in made}

    found = []
    for name, extra in zip(bills, ("", "full"), strict=True):
        bill = json.loads((folder / name).read_text())
        assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", PROJECT["name"])
        assert bill["metadata"]["component"]["version"] == PROJECT["version"]
        parts = {canonicalize_name(one["name"]) for one in bill["components"]}
        found.append(parts)
        assert {canonicalize_name(Requirement(line).name) for line in requirements_of(extra)} <= parts
        assert not {"pip", "twine", "build", "pytest"} & parts, "tools of the release are no part of it"
    assert found[0] < found[1]


OF_EACH_LIBRARY = (
    "tests/dca_proto/protocol/test_vectors.py",
    "tests/dca_proto/privacy/test_noise.py",
    "tests/dca_proto/runtime/test_mqtt.py",
    "tests/dca_proto/dashboard/test_view.py",
    "tests/dca_proto/cli/test_help.py",
    "tests/emulator/report/test_report.py::test_a_page_is_whole_in_itself",
    "tests/inference/test_golden_fits.py",
    "tests/inference/mcmc/test_compilation_cache.py",
    "tests/e2e/test_swarm.py::test_a_run_prints_and_writes_its_result",
)
"""Tests that use the libraries of all extras."""


def test_the_lowest_versions_that_are_stated_suffice(index: None, tmp_path: Path) -> None:
    """With the newest versions of what these need in turn. `scripts/test_lowest` alone has more tests.

    It needs the oldest Python that is supported.
    """
    oldest = "python" + PROJECT["requires-python"].removeprefix(">=").partition(",")[0]
    if shutil.which(oldest) is None:
        pytest.skip(f"{oldest} is not installed")
    run(ROOT, ROOT / "scripts" / "test_lowest", tmp_path / "lowest", *OF_EACH_LIBRARY)
