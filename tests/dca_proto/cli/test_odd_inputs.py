"""Every file that a command or a configuration names: a pipe, a device, a folder, or content that no program wrote.

Each call ends at once, with one line and an exit code. A new command or option fails these tests until it is listed.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shutil
import signal
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from commands import federation_folder

from dca_proto.cli import GROUP, main
from dca_proto.runtime.config import ClientFiles, ComputeFiles, NodeFiles
from dca_proto.runtime.settings import BrokerSettings

BASE = {
    "broker": "broker --port 0",
    "federation enrol": "federation enrol client-1.key",
    "federation revoke": "federation revoke client-1",
    "federation add-node": "federation add-node c=c.key",
    "federation replace-node": "federation replace-node compute-1 c=c.key",
    "federation set-p": "federation set-p 1",
    "federation add-trainer": "federation add-trainer u=u.key",
    "federation init": "federation init other --computes 2 --clients 1 --broker mqtt://127.0.0.1",
    "learn": "learn --job regression --features y --target x --epsilon 1 --delta 1e-6 --clients 9 --bounds x=0:1,y=0:1",
    "scaling": "scaling",
    "swarm": "swarm --job gaussian --bounds x=0:1 --clients 4 --broker memory",
}
TLS = "--tls-certificate {0} --tls-key {1} --tls-ca {2}"
INPUTS = {
    ("broker", "federation"): "--federation ODD --passwords passwords",
    ("broker", "tls_certificate"): TLS.format("ODD", "c.key", "c.key"),
    ("broker", "tls_key"): TLS.format("c.key", "ODD", "c.key"),
    ("broker", "tls_ca"): TLS.format("c.key", "c.key", "ODD"),
    ("broker clear", "federation"): "ODD",
    ("broker clear", "ca"): "federation.toml --url mqtts://127.0.0.1:1 --ca ODD",
    ("broker clear", "password_file"): "federation.toml --url mqtt://127.0.0.1:1 --password-file ODD",
    ("client", "config"): "ODD",
    ("compute", "config"): "ODD",
    ("trainer", "config"): "ODD",
    ("learn", "config"): "ODD",
    ("learn", "journal"): "trainer.toml --journal ODD",
    ("learn", "test"): "trainer.toml --test ODD",
    ("learn", "bounds"): "trainer.toml --bounds ODD",
    ("trainer", "bounds"): "trainer.toml --statistic mean --columns x --bounds ODD",
    ("account", "bounds"): "--clients 100 --bounds ODD",
    ("swarm", "bounds"): "--csv data.csv --target x --bounds ODD",
    ("swarm", "csv"): "--csv ODD --target x",
    ("swarm", "ledger"): "--csv data.csv --target x --epsilon 1 --ledger ODD --ledger-epsilon 4",
    ("emulate run", "scenario"): "ODD",
    ("federation init", "authority"): "--authority ODD",
    ("federation show", "file"): "ODD",
    ("federation members", "file"): "ODD",
    ("federation members", "authority"): "--authority ODD",
    ("federation revoke", "node_file"): "--members ODD",
    ("inspect", "file"): "ODD",
    ("status", "files"): "ODD",
    ("store compact", "files"): "ODD",
    ("store backup", "file"): "ODD --to c.backup",
    ("store restore", "file"): "ODD --from c.backup",
    ("store restore", "source"): "client-1.toml --from ODD",
    ("ledger", "file"): "ODD",
    ("report", "run"): "ODD",
    ("dashboard", "files"): "ODD",
    ("registrar", "config"): "ODD",
    ("federation invite", "registrar"): "ward-7 --registrar ODD",
    ("federation invite", "suggest_policy"): "ward-7 --suggest-policy ODD",
    ("join", "policy"): "ward-7.dcai --no-start --policy ODD",
    ("federation add-registrar", "authority"): f"r={'ab' * 32} --authority ODD",
    ("federation add-registrar", "federation"): f"r={'ab' * 32} --federation ODD",
    ("results", "schedule"): "--schedule ODD",
    ("schedule", "file"): "ODD",
    ("scaling", "journal"): "--journal ODD",
    ("scaling", "calibration_file"): "--calibration ODD --predict clients=10,dimension=2,computes=2",
    **{
        (f"federation {command}", name): f"--{name} ODD"
        for command in ("enrol", "revoke", "add-node", "replace-node", "set-p", "add-trainer")
        for name in ("federation", "authority")
    },
}
"""How each command names an input file."""
OUTPUTS = {"plot", "plot_to", "draws", "output", "save", "png", "table", "to", "synthetic"}
FOLDERS = {
    ("broker", "passwords"), ("broker", "certificates"), ("federation init", "folder"), ("federation run", "folder"),
    ("swarm", "data_folder"), ("federation deploy", "folder"), ("join", "folder"),
    ("join", "data"),  # named in the client's file, which checks it
    ("keygen", "file"),  # written, and never replaces a file
}  # fmt: skip
DEEP = "a = " + "[" * 20_000 + "]" * 20_000
KINDS = ("a pipe", "a device", "a folder", "too deep")


def _functions() -> Iterator[tuple[str, typing.Any]]:
    for entry in importlib.metadata.entry_points(group=GROUP):
        command = entry.load()
        if isinstance(command, typer.Typer):
            group = command.registered_callback
            if group is not None and group.callback is not None:  # `dca broker` runs without a command of its group
                yield entry.name, group.callback
            for one in command.registered_commands:
                assert one.callback is not None
                yield f"{entry.name} {one.name or one.callback.__name__}", one.callback
        else:
            yield entry.name, command


def _takes_paths(hint: typing.Any) -> bool:
    return hint is Path or any(map(_takes_paths, typing.get_args(hint)))


def test_every_input_file_of_a_command_is_tried() -> None:
    found = set()
    for command, function in _functions():
        for name, hint in typing.get_type_hints(function).items():
            if _takes_paths(hint) or name == "bounds":
                found.add((command, name))
    assert {one for one in found if one[1] not in OUTPUTS} == INPUTS.keys() | FOLDERS


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = federation_folder(tmp_path_factory, "mqtt://127.0.0.1:1")
    (folder / "data.csv").write_text("x\n1\n2\n")
    return folder


@pytest.fixture
def folder(members: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the federation's folder that is the working directory."""
    copy = tmp_path / "demo"
    shutil.copytree(members, copy)
    monkeypatch.chdir(copy)
    return copy


def odd(kind: str, path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    match kind:
        case "a pipe":
            os.mkfifo(path, 0o600)
        case "a device":
            path.symlink_to("/dev/zero")
        case "a folder":
            path.mkdir(0o700)
        case _:
            path.write_text(kind if kind != "too deep" else DEEP)
            path.chmod(0o600)


@contextlib.contextmanager
def not_waiting() -> Iterator[None]:
    """Turn a call that waits into a failure. Nothing depends on the time otherwise."""

    def stop(*_: object) -> None:
        raise AssertionError("the call waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def line_of(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """The error of a call that must be refused: one line."""
    capsys.readouterr()
    with not_waiting():
        code = main(arguments)
    error = capsys.readouterr().err
    assert code in (2, 5, 8), (arguments, code, error)
    return [line for line in error.splitlines() if line.startswith("dca: ")][-1]


@pytest.mark.parametrize(("command", "name"), INPUTS)
def test_an_input_that_is_no_file_is_named_at_once(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    base = BASE.get(command, command)
    if name == "bounds":
        base = re.sub(r" --bounds \S+", "", base)
    for kind in KINDS:
        if (
            kind == "too deep"
            and ("tls" in name or name in ("csv", "test", "journal", "password_file", "policy", "suggest_policy"))
        ) or (kind == "a folder" and command == "inspect"):
            continue
        place = folder / "odd.toml"
        odd(kind, place)
        line = line_of(capsys, [*base.split(), *INPUTS[command, name].replace("ODD", "odd.toml").split()])
        assert "odd.toml" in line, (kind, line)
        named = (f"is {kind}", "not a regular file", "Is a directory", "has no actor's file, and neither has a folder")
        assert kind == "too deep" or any(text in line for text in named), (kind, line)
        place.rmdir() if kind == "a folder" else place.unlink()


@pytest.mark.parametrize(("command", "name"), [one for one in INPUTS if one[0] not in ("status", "dashboard")])
@pytest.mark.parametrize("place", [".", "/", ".."])
def test_a_folder_without_a_name_of_its_own_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, name: str, place: str
) -> None:
    """`Path.with_name` and `with_suffix` refuse it by an exception. The two commands take folders."""
    base = re.sub(r" --bounds \S+", "", BASE.get(command, command)) if name == "bounds" else BASE.get(command, command)
    line = line_of(capsys, [*base.split(), *INPUTS[command, name].replace("ODD", place).split()])
    assert any(text in line for text in ("is a folder", "not a regular file", "Is a directory")), line


NAMED = [
    (role, section, name)
    for role, files in (("client", ClientFiles), ("compute", ComputeFiles), ("trainer", NodeFiles))
    for section, kind in ((role, files), ("broker", BrokerSettings))
    for name, hint in typing.get_type_hints(kind).items()
    if Path in (hint, *typing.get_args(hint))
]
"""Every file that a configuration names, by role and section."""
ROUND = {"trainer": "--statistic mean --columns x --bounds x=0:1 --epsilon 1 --delta 1e-6 --clients 100"}


@pytest.mark.parametrize(("role", "section", "name"), NAMED)
def test_a_file_of_a_configuration_that_is_none_is_named_at_once(
    folder: Path, capsys: pytest.CaptureFixture[str], role: str, section: str, name: str
) -> None:
    config = folder / {"client": "client-1.toml", "compute": "compute-1.toml", "trainer": "trainer.toml"}[role]
    text = re.sub(rf"(?m)^{name} = .*\n", "", config.read_text().replace("mqtt://", "mqtts://"))
    text = re.sub(r"(?m)^data = .*\n", 'data = "data.csv"\n', text) if name != "data" else text
    more = {
        "certificate": 'key = "c.key"\n',
        "key": 'certificate = "c.key"\n',
        "proxy_password_file": 'proxy = "http://p"\nproxy_username = "u"\n',
    }.get(name, "") * (section == "broker")
    config.write_text(re.sub(rf"(?m)^\[{section}\]$", f'[{section}]\n{name} = "odd"\n{more}', text))
    for kind in ("a pipe", "a device", "a folder"):
        place = folder / "odd"
        odd(kind, place)
        assert "odd" in line_of(capsys, [role, config.name, *ROUND.get(role, "").split()])
        place.rmdir() if kind == "a folder" else place.unlink()


NUMBERS = ("99999999999999999999", "9" * 5000, "-1", "1" + "0" * 30)
VALUES = (*NUMBERS, "nan", "1979-05-27", '"\\u0000"', "[" * 40 + "]" * 40, "{a.b.c.d.e.f = 1}")
TEXTS = {
    "federation.toml": "federation show federation.toml",
    "authority.key": "federation enrol client-1.key",
    "client-1.cert": "client client-1.toml",
    "client-1.key": "client client-1.toml",
    "client-1.toml": "ledger client-1.toml",
    "compute-1.toml": "compute compute-1.toml",
    "trainer.toml": f"trainer trainer.toml {ROUND['trainer']}",
}


@pytest.mark.long
@pytest.mark.parametrize("file", TEXTS)
def test_no_value_of_a_file_ends_in_a_traceback(folder: Path, capsys: pytest.CaptureFixture[str], file: str) -> None:
    """Each value in turn is replaced by one that no program writes; most are refused, in a line."""
    path = folder / file
    whole = path.read_text()
    keys = re.findall(r"(?m)^(\w+) = ", whole)
    assert keys
    for key in keys:
        for value in VALUES:
            path.write_text(re.sub(rf"(?m)^{key} = .*$", lambda _: f"{key} = {value}", whole, count=1))  # noqa: B023
            with not_waiting():
                code = main(TEXTS[file].split())
            error = capsys.readouterr().err
            assert code in (0, 2, 5, 6, 8), (key, value[:30], code, error)


@pytest.mark.parametrize("call", ["broker --host a..b", "swarm --job gaussian --clients 4 --broker mqtt://a..b"])
def test_a_host_that_cannot_be_looked_up_is_named(folder: Path, capsys: pytest.CaptureFixture[str], call: str) -> None:
    assert "'a..b'" in line_of(capsys, call.split())
