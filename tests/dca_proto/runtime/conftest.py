"""The machine of a registrar."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from joined_devices import HOSTS
from ports import free_port

from dca_proto.cli import main
from dca_proto.runtime import joining
from dca_proto.runtime import registrar as module


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment, with a free port for the registrar."""
    folder = tmp_path_factory.mktemp("deployed") / "hearts"
    assert main(["federation", "deploy", str(folder), "--hosts", HOSTS, "--per-day", "5"]) == 0
    return folder


@pytest.fixture
def host(deployed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine of the registrar, with a port of its own. No broker runs: nobody waits for one."""
    shutil.copytree(deployed, tmp_path / "hearts")
    path = tmp_path / "hearts/berlin/registrar.toml"
    path.write_text(path.read_text().replace("port = 8884", f"port = {free_port()}"))

    async def admitted(*_: object) -> None:
        """A broker that lets everybody in."""

    monkeypatch.setattr(joining, "_admitted", admitted)
    monkeypatch.setattr(module, "_PAUSE_S", 0.05)
    return path.parent
