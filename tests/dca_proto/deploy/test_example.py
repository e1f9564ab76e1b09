"""`deploy/`: the example is what the command writes, and the image runs it without rights."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dca_proto.cli import main

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "deploy/example"
HOSTS = "berlin=127.0.0.1,paris=127.0.0.2,rome=127.0.0.3"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deployed") / "example"
    assert main(["federation", "deploy", str(folder), "--hosts", HOSTS, "--containers", "20"]) == 0
    return folder


def test_the_example_is_what_the_command_writes(written: Path) -> None:
    """If this fails, copy the files of the new deployment into deploy/example."""
    names = {path.name for path in EXAMPLE.iterdir()} - {"README.md"}
    assert {"compose.yaml", "clients.yaml", "inventory.ini", "playbook.yaml", "dca-broker.service"} <= names
    for name in names:
        place = written / "berlin" if name.endswith(".service") else written
        assert (EXAMPLE / name).read_text() == (place / name).read_text(), name


def test_the_example_has_no_secret() -> None:
    for path in EXAMPLE.iterdir():
        assert not re.search(r'secret = "|PRIVATE KEY|\$7\$', path.read_text()), path


def test_it_has_three_nodes_a_trainer_a_broker_and_twenty_clients() -> None:
    services = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())["services"]
    assert {name.partition("-")[0] for name in services} == {"broker", "registrar", "compute", "trainer"}
    assert len([name for name in services if name.startswith("compute-")]) == 3
    clients = yaml.safe_load((EXAMPLE / "clients.yaml").read_text())["services"]
    assert list(clients) == [f"client-{number}" for number in range(1, 21)]
    assert len({service["volumes"][0] for service in clients.values()}) == 20
    for service in (*services.values(), *clients.values()):
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])


@pytest.mark.parametrize("name", ["compose.yaml", "clients.yaml"])
def test_the_commands_of_containers_exist(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for service in yaml.safe_load((EXAMPLE / name).read_text())["services"].values():
        program, command, *given = service["command"]
        if program == "mosquitto":
            continue
        assert main([command, "--help"]) == 0
        known = capsys.readouterr().out
        assert [word for word in given if word.startswith("--") and word not in known] == []


def test_the_image_has_a_user_without_rights_and_what_it_copies_exists() -> None:
    lines = (ROOT / "deploy/Dockerfile").read_text().splitlines()
    users = [line.removeprefix("USER ") for line in lines if line.startswith("USER ")]
    assert users == ["10001:10001"]
    assert "${DCA_USER:-10001:10001}" in (EXAMPLE / "compose.yaml").read_text()
    copied = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    assert len(copied) > 4
    assert [name for name in copied if not (ROOT / name).exists()] == []
    (extras,) = re.findall(r'pip install --no-cache-dir "\.\[([a-z,]+)\]"', "\n".join(lines))
    known = (ROOT / "pyproject.toml").read_text()
    assert [extra for extra in extras.split(",") if f"\n{extra} = [" not in known] == []
    assert "mosquitto" in "\n".join(lines)
