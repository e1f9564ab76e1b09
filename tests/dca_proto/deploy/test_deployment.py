"""`dca federation deploy`: files of all machines, that actors, mosquitto, systemd, Compose and Ansible can read."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from dca_proto.cli import main
from dca_proto.cli.deployed import _command, units_of
from dca_proto.deploy.tls import Pair
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.policy import Floors
from dca_proto.runtime.config import read_config
from dca_proto.runtime.keyfile import read_federation, read_identity
from dca_proto.runtime.registrar_file import read_registrar

HOSTS = "berlin=127.0.0.1,paris=127.0.0.2,lab=lab.example"
GIVEN = ("--hosts", HOSTS, "--nodes", "berlin,paris", "--trainer", "lab")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment on three machines, of which two have Compute nodes."""
    folder = tmp_path_factory.mktemp("deployed") / "hearts"
    assert main(["federation", "deploy", str(folder), *GIVEN]) == 0
    return folder


@pytest.fixture(scope="module")
def federation(made: Path) -> Federation:
    return read_federation(made / "owner/federation.toml")


def actors(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.toml") if path.stem not in ("federation", "registrar"))


def test_nodes_of_a_small_federation_get_lower_floors(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Clients keep their own until their owners accept what invitations suggest: the output says so."""
    assert read_config(made / "berlin/compute.toml").floors == Floors(clients_min=20, honest_min=10)
    assert main(["federation", "deploy", str(tmp_path / "small"), *GIVEN, "--clients-min", "4"]) == 0
    for name in ("berlin", "paris"):
        assert read_config(tmp_path / f"small/{name}/compute.toml").floors == Floors(clients_min=4, honest_min=3)
    assert "invitations suggest that to devices, whose owners decide" in capsys.readouterr().out
    suggested = read_registrar(tmp_path / "small/berlin/registrar.toml").entrance().policy
    assert suggested == "clients_min = 4\nhonest_min = 3\n"
    assert not (tmp_path / "small/paris/policy.toml").exists()
    assert read_registrar(made / "berlin/registrar.toml").entrance().policy == ""
    assert main(["federation", "deploy", str(tmp_path / "large"), *GIVEN, "--clients-min", "500"]) == 0
    assert read_config(tmp_path / "large/paris/compute.toml").floors == Floors(clients_min=500, honest_min=10)


@pytest.mark.parametrize("small", [False, True])
def test_devices_in_containers_accept_what_their_invitations_suggest(small: bool, tmp_path: Path) -> None:
    """Otherwise none of a small trial would join: a container cannot ask its owner."""
    given = ["--containers", "5", *(["--clients-min", "4"] if small else [])]
    assert main(["federation", "deploy", str(tmp_path / "trial"), *GIVEN, *given]) == 0
    commands = re.findall(r"command: (.*)", (tmp_path / "trial/clients.yaml").read_text())
    assert [("--accept-policy" in command) for command in commands] == [small] * 5


def test_each_machine_gets_its_actors(made: Path, federation: Federation) -> None:
    assert [f"{path.parent.name}/{path.name}" for path in actors(made)] == [
        "berlin/compute.toml", "lab/trainer.toml", "paris/compute.toml",
    ]  # fmt: skip
    assert [member.name for member in federation.computes] == ["berlin", "paris"]
    assert federation.name == "hearts"
    for path in actors(made):
        config = read_config(path)
        identity = read_identity(config.files.identity, config.role)
        assert federation.is_server(identity.id)
        assert config.federation == federation
        assert config.broker.url == "mqtts://127.0.0.1:8883"
        assert config.broker.tls_context() is not None
        assert f"{identity.id.hex()}:$7$" in (made / "berlin/passwords").read_text()
        assert config.broker.read_password() not in (made / "berlin/passwords").read_text()


def test_secrets_are_readable_by_their_owner_only(made: Path) -> None:
    secret = re.compile(r'secret = "|PRIVATE KEY')
    for path in made.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.is_dir():
            assert mode == 0o700, path
        elif secret.search(path.read_text()) or path.suffix == ".password" or path.name in ("passwords", "access"):
            assert mode == 0o600, path


def test_what_the_owner_keeps_is_on_no_machine(made: Path) -> None:
    keys = [(made / "owner" / name).read_text() for name in ("authority.key", "ca.key")]
    others = [path for path in made.rglob("*") if path.is_file() and path.parent.name != "owner"]
    assert len(others) > 20
    assert not [path for path in others if path.read_text() in keys]
    assert not [path for path in others if path.name in ("authority.key", "ca.key")]


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """Complete a TLS handshake in memory."""
    pipes = [ssl.MemoryBIO() for _ in range(2)]
    ends = [
        client.wrap_bio(pipes[0], pipes[1], server_hostname=host),
        server.wrap_bio(pipes[1], pipes[0], server_side=True),
    ]
    waiting = [True, True]
    for _ in range(10):
        for place, end in enumerate(ends):
            try:
                end.do_handshake()
                waiting[place] = False
            except ssl.SSLWantReadError:
                pass
    assert waiting == [False, False]


@pytest.mark.parametrize("name", ["127.0.0.1", "berlin"])
def test_the_brokers_certificate_names_its_machine(made: Path, name: str) -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(made / "berlin/broker.pem", made / "berlin/broker.key")
    client = ssl.create_default_context(cafile=made / "paris/ca.pem")
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 does by default
    handshake(server, client, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(server, client, "127.0.0.9")


def test_another_ca_is_refused(made: Path, tmp_path: Path) -> None:
    assert main(["federation", "deploy", str(tmp_path / "other"), *GIVEN]) == 0
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(made / "berlin/broker.pem", made / "berlin/broker.key")
    client = ssl.create_default_context(cafile=tmp_path / "other/paris/ca.pem")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client, "127.0.0.1")


def test_compose_starts_everything_without_rights(made: Path) -> None:
    services = yaml.safe_load((made / "compose.yaml").read_text())["services"]
    assert set(services) == {"broker", "registrar", "compute-berlin", "compute-paris", "trainer"}
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        (mount,) = service["volumes"]
        host, place = mount.split(":")
        assert (made / host).is_dir()
        assert place == service["working_dir"] == "/var/lib/dca"
        named = [word for word in service["command"] if "." in word]
        assert [word for word in named if not (made / host / word).exists()] == []


def test_the_registrar_reaches_the_brokers_process_in_its_container(made: Path) -> None:
    services = yaml.safe_load((made / "compose.yaml").read_text())["services"]
    assert services["registrar"]["pid"] == "service:broker"
    assert services["registrar"]["volumes"] == services["broker"]["volumes"]


def test_the_registrar_is_named_within_the_limits_that_were_asked(made: Path, federation: Federation) -> None:
    file = read_registrar(made / "berlin/registrar.toml")
    (registrar,) = federation.registrars
    assert registrar.key == read_identity(file.identity, "registrar").public_key
    assert (registrar.clients, registrar.days, registrar.per_day) == (100, 90, 100)
    assert (file.address, file.port, file.broker) == ("127.0.0.1", 8884, "mqtts://127.0.0.1:8883")
    assert file.members.read_text() == file.passwords.read_text()


def test_ansible_copies_and_starts_what_each_machine_has(made: Path) -> None:
    rows = re.findall(r"(?m)^(\S+) ansible_host=(\S+) units='(.*)'$", (made / "inventory.ini").read_text())
    assert [f"{name}={address}" for name, address, _ in rows] == HOSTS.split(",")
    for name, _, units in rows:
        assert {f"{unit}.service" for unit in json.loads(units)} == {
            path.name for path in made.glob(f"{name}/*.service")
        }
    (play,) = yaml.safe_load((made / "playbook.yaml").read_text())
    started = [task for task in play["tasks"] if "ansible.builtin.systemd" in task]
    assert [task["loop"] for task in started] == ["{{ units }}"]


def test_ansible_replaces_renewed_certificates_and_older_federation_files_and_no_secret(made: Path) -> None:
    """Before, no file that a host had was ever replaced, so a renewal never reached it."""
    (play,) = yaml.safe_load((made / "playbook.yaml").read_text())
    copies = [task["ansible.builtin.copy"] | task for task in play["tasks"] if "ansible.builtin.copy" in task]
    (whole,) = [one for one in copies if one["src"] == "{{ here }}/"]
    assert whole["force"] is False
    replaced = {one["src"].removeprefix("{{ here }}/"): one for one in copies if one.get("force", True)}
    assert set(replaced) == {"ca.pem", "broker.pem", "registrar.pem", "federation.toml", "{{ item }}.service"}
    assert replaced["ca.pem"]["check_mode"], "it is compared only: another CA stops the play"
    handlers = {handler["name"]: handler["ansible.builtin.systemd"] for handler in play["handlers"]}
    for name, unit in (
        ("broker.pem", "dca-broker"),
        ("registrar.pem", "dca-registrar"),
        ("federation.toml", "dca-compute"),
    ):
        assert handlers[replaced[name]["notify"]]["name"] == unit
    found = re.findall(play["vars"]["number"], (made / "berlin/federation.toml").read_text())
    assert found == ["1"], "only a larger number replaces the host's file"
    assert replaced["federation.toml"]["when"].count("regex_findall(number)") == 2


def test_systemd_accepts_the_units(made: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    units = sorted(made.rglob("*.service"))
    assert {unit.name for unit in units} == {f"dca-{name}.service" for name in ("broker", "compute", "registrar")}
    for unit in units:
        text = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text())
        (tmp_path / unit.name).write_text(text)
    checked = subprocess.run(
        ["systemd-analyze", "verify", *{str(tmp_path / unit.name) for unit in units}],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (checked.returncode, checked.stderr) == (0, "")
    for unit in units:
        rated = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(tmp_path / unit.name)]
        assert subprocess.run(rated, capture_output=True, check=False).returncode == 0, "exposure above 2.0 of 10"


REFUSED = {
    "no address": ("berlin", "expected NAME=ADDRESS"),
    "no name": ("=10.0.0.1", "expected NAME=ADDRESS"),
    "a path": ("../x=10.0.0.1,paris=10.0.0.2", "expected NAME=ADDRESS"),
    "the owner's folder": ("owner=10.0.0.1,paris=10.0.0.2", "expected NAME=ADDRESS"),
    "no host name": ("berlin=10.0.0.1/8,paris=10.0.0.2", "expected NAME=ADDRESS"),
    "a line break": ("berlin=a\nuser root,paris=b", "expected NAME=ADDRESS"),
    "an address with a zone": ('berlin=fe80::1%x"\nlistener 1883,paris=b', "expected NAME=ADDRESS"),
    "an option": ("berlin=-x,paris=b", "expected NAME=ADDRESS"),
    "a name twice": ("berlin=10.0.0.1,berlin=10.0.0.2", "found berlin twice"),
    "one node": ("berlin=10.0.0.1", "found 1 Compute nodes, expected at least 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_odd_hosts_are_refused(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts, expected = REFUSED[case]
    assert main(["federation", "deploy", str(tmp_path / "x"), "--hosts", hosts]) == 2
    line = capsys.readouterr().err
    assert expected in line
    assert line.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_host_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--nodes", "--broker", "--trainer"):
        assert main(["federation", "deploy", str(tmp_path / "x"), "--hosts", HOSTS, option, "berlim"]) == 2
        assert "did you mean 'berlin'" in capsys.readouterr().err


def test_nothing_is_overwritten(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    assert main(["federation", "deploy", str(made), *GIVEN]) == 8
    assert "exists and is not replaced" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    assert [path.name for path in made.parent.iterdir()] == ["hearts"]


def test_no_secret_is_shown() -> None:
    assert "secret" not in repr(Pair("certificate", "secret"))


def test_the_package_has_the_templates() -> None:
    root = Path(__file__).parents[3]
    assert (
        "deploy/templates/*"
        in tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["dca_proto"]
    )


def test_a_list_of_processes_tells_the_machines_units_apart(tmp_path: Path) -> None:
    folder = tmp_path / "hearts"
    assert main(["federation", "deploy", str(folder), "--hosts", "berlin=127.0.0.1,paris=127.0.0.2"]) == 0
    units = [unit for unit in units_of(folder) if unit.name != "broker"]
    commands = [" ".join(_command(unit, "mosquitto", tmp_path)) for unit in units]
    assert [command.split("dca_proto.cli ")[1] for command in commands] == [
        f"compute {folder}/berlin/compute.toml --log-json",
        f"registrar {folder}/berlin/registrar.toml --log-json",
        f"compute {folder}/paris/compute.toml --log-json",
    ]
