"""The `dca` command: fast help, one line and the right exit code for every mistake, no secret shown."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import msgspec
import pytest
import typer
from patience import PATIENCE_S
from ports import free_port
from schemas import parsed

from dca_proto import cli
from dca_proto.cli import main
from dca_proto.cli.inspect import describe_message
from dca_proto.errors import PeerError, RoundAborted, TransportError, UsageError
from dca_proto.protocol.client.round import StoredClientRound
from dca_proto.protocol.compute.round import StoredList
from dca_proto.protocol.contribution import HeldContribution
from dca_proto.protocol.effects import Persist
from dca_proto.protocol.keyring import TABLE as EPOCHS
from dca_proto.protocol.trainer.round import ROUNDS, StoredTrainerRound
from dca_proto.protocol.wire.codec import decode_body, decode_frame, encode
from dca_proto.protocol.wire.fields import Signed
from dca_proto.protocol.wire.messages import Answer, Contribution, Receipt
from dca_proto.runtime import device
from dca_proto.runtime.keyfile import read_certificate, read_federation, read_identity
from dca_proto.runtime.parts import split
from dca_proto.runtime.process import complete
from dca_proto.runtime.store import SqliteStore
from dca_proto.testing import Network, TestFederation
from dca_proto.wording import to_install

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Calls `dca` in a folder of its own: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        return code, *capsys.readouterr()

    return call


def refused(run: Run, *arguments: str, code: int = 2) -> str:
    """The one line of a call that must be refused with that exit code."""
    given, _, error = run(*arguments)
    assert (given, error[:5], error.count("\n")) == (code, "dca: ", 1)
    return error


# --- the dispatcher ---------------------------------------------------------------------------------------------------


def test_help_lists_every_command_with_a_line_and_imports_none() -> None:
    code = (
        "import sys; from dca_proto.cli import main; code = main(['--help'])\n"
        "heavy = {'typer', 'rich', 'scipy', 'sklearn', 'asyncio', 'dca_proto.cli.swarm', 'dca_proto.cli.client'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\nsys.exit(code)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for line in (
        "broker      Run a broker until Ctrl-C",
        "client      Run a client",
        "compute     Run a Compute node",
        "federation  Create and change a federation file",
        "inspect     Show the contents of a message",
        "keygen      Create an identity",
        "ledger      Show what a client or a trainer has spent",
        "swarm       ",
        "trainer     Run one round",
    ):
        assert f"\n  {line}" in shown


def test_wrong_calls_are_one_line_and_exit_2(run: Run) -> None:
    assert "'clinet' is not a command (did you mean 'client'?)" in refused(run, "clinet")
    assert "no such option: --rol" in refused(run, "keygen", "k", "--rol", "x").lower()
    assert "see `dca keygen --help`" in refused(run, "keygen")
    assert "invalid value for '--port'" in refused(run, "broker", "--port", "x")
    assert "no such command" in refused(run, "federation", "shwo").lower()


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("bad"), 2, "bad"),
        (TransportError("no broker"), 6, "no broker"),
        (PeerError("x", found=1, expected=2), 2, "x: found 1, expected 2"),
        (
            RoundAborted("too few", contributors=5, needed=7),
            3,
            "5 clients contributed, at least 7 were needed; nothing",
        ),
        (RoundAborted("silence"), 3, "the round was aborted: silence"),
        (KeyboardInterrupt(), 130, ""),
        (typer.Abort(), 130, "interrupted"),
        (typer.Exit(143), 143, ""),
    ],
)
def test_errors_become_exit_codes(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, line: str
) -> None:
    def fail() -> None:
        """Fail."""
        raise error

    monkeypatch.setattr(EntryPoint, "load", lambda entry: fail)
    monkeypatch.setattr(sys.modules[__name__], "EXAMPLES", "", raising=False)
    monkeypatch.setitem(sys.modules, "dca_proto.cli.keygen", sys.modules[__name__])
    found, _, errors = run("keygen")
    assert (found, line in errors) == (code, True)
    assert "Traceback" not in errors
    if line:
        assert "Traceback" in run("keygen", "--debug")[2]


def test_a_data_error_is_the_callers_and_a_bug_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    from inference.errors import DataError

    assert cli.explain(DataError("column 'x'")) == ("column 'x'", 5)
    assert cli.explain(ValueError("ours")) is None
    late = ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib.figure")  # not when it was imported
    assert cli.explain(late) == (f"this needs matplotlib.figure, which is not installed: {to_install('full')}", 2)
    assert cli.explain(ModuleNotFoundError("No module named 'dca_proto.tpyo'", name="dca_proto.tpyo")) is None


def test_a_missing_extra_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(entry: EntryPoint) -> None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")

    monkeypatch.setattr(EntryPoint, "load", load)
    assert "this needs sklearn, which is not installed: pip install -e '.[full]'" in refused(run, "swarm")


def test_ctrl_c_while_a_command_is_imported_is_quiet(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(entry: EntryPoint) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(EntryPoint, "load", load)
    assert run("swarm") == (130, "", "")


def test_help_is_found_where_people_look_for_it(run: Run) -> None:
    assert run("help", "keygen") == run("keygen", "--help")
    assert run("help", "federation", "init") == run("federation", "init", "--help")
    code, output, error = run("federation")
    assert (code, error) == (0, "")
    assert "enrol" in output
    assert "'nosuch' is not a command" in refused(run, "help", "nosuch")


def test_a_closed_pipe_is_no_error() -> None:
    command = [sys.executable, "-m", "dca_proto.cli", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


# --- keygen and federation --------------------------------------------------------------------------------------------


def test_keygen_prints_the_public_key_and_never_the_secret(run: Run, tmp_path: Path) -> None:
    code, output, _ = run("keygen", "a.key", "--role", "compute")
    identity = read_identity(tmp_path / "a.key", "compute")
    assert code == 0
    assert identity.public_key.hex() in output
    assert identity.id.hex() in output
    assert identity.seed.hex() not in output
    assert (tmp_path / "a.key").stat().st_mode & 0o777 == 0o600
    assert "exists already" in refused(run, "keygen", "a.key", code=8)
    assert "role 'guest' is unknown" in refused(run, "keygen", "b.key", "--role", "guest")
    assert "does not exist" in refused(run, "keygen", "no/b.key", code=8)


def test_a_federation_of_members_who_made_their_own_keys(run: Run, tmp_path: Path) -> None:
    for name, role in (("a", "compute"), ("b", "compute"), ("t", "trainer"), ("c", "client"), ("auth", "authority")):
        run("keygen", f"{name}.key", "--role", role)
    key = read_identity(tmp_path / "b.key", "compute").public_key.hex()
    given = ("--compute", "a=a.key", "--compute", f"b={key}", "--trainer", "t=t.key", "--authority", "auth.key")
    assert run("federation", "init", "fed", "--name", "hearts", *given)[0] == 0
    assert sorted(path.name for path in (tmp_path / "fed").iterdir()) == ["federation.toml"]
    federation = read_federation(tmp_path / "fed/federation.toml")
    assert [member.name for member in federation.computes] == ["a", "b"]

    files = ("--federation", "fed/federation.toml", "--authority", "auth.key")
    client = read_identity(tmp_path / "c.key", "client")
    assert run("federation", "enrol", "c.key", client.public_key.hex(), *files, "--days", "30")[0] == 0
    for path in (tmp_path / "c.cert", tmp_path / f"{client.id.hex()}.cert"):
        assert read_certificate(path, federation, 0).client_key == client.public_key
    shown = run("federation", "show", "fed/federation.toml")[1]
    for text in ("hearts", "compute", "b", key, "enrolment key", federation.hash.hex()):
        assert text in shown
    assert "neither a public key" in refused(run, "federation", "enrol", "xyz", *files)
    assert "--days 0" in refused(run, "federation", "enrol", "c.key", *files, "--days", "0")
    assert "not the federation file's enrolment key" in _with_another_authority(run)
    found = refused(run, "federation", "enrol", "a.key", *files, code=5)
    assert "a.key is the identity of a compute, expected that of a client" in found


def _with_another_authority(run: Run) -> str:
    run("keygen", "other.key", "--role", "authority")
    files = ("--federation", "fed/federation.toml", "--authority", "other.key")
    return refused(run, "federation", "enrol", "c.key", *files, code=5)


@pytest.mark.parametrize(
    ("given", "message", "code"),
    [
        ((), "found 0 Compute nodes, expected at least 2", 2),
        (("--computes", "1"), "found 1 Compute nodes", 2),
        (("--computes", "-1"), "--computes -1: expected 0 to 100", 2),
        (("--computes", "2", "--name", "No"), "federation name 'No'", 5),
        (("--compute", "a"), "--compute 'a': expected NAME=PUBLICKEY", 2),
        (("--compute", "a=zz"), "'zz' is neither a public key", 2),
        (("--compute", f"a={'00' * 32}", "--compute", f"b={'00' * 32}"), "two members have the same key", 5),
        (("--compute", f"a={'00' * 32}", "--compute", f"b={'01' * 32}"), "no trainer", 2),
        (("--computes", "2", "--authority", "no.key"), "cannot read no.key", 5),
        (("--computes", "2", "--days", "nan"), "--days nan", 2),
    ],
)
def test_an_impossible_federation_leaves_no_files(
    run: Run, tmp_path: Path, given: tuple[str, ...], message: str, code: int
) -> None:
    assert message in refused(run, "federation", "init", "fed", *given, code=code)
    assert not (tmp_path / "fed").exists()


def test_init_replaces_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "fed").mkdir()
    (tmp_path / "fed/client-2.key").write_text("mine")
    assert "client-2.key exists already" in refused(
        run, "federation", "init", "fed", "--computes", "2", "--clients", "3"
    )
    assert [path.name for path in (tmp_path / "fed").iterdir()] == ["client-2.key"]


def test_a_trial_federation_has_everybodys_files(run: Run, tmp_path: Path) -> None:
    given = ("--computes", "2", "--clients", "10", "--broker", "mqtt://127.0.0.1")
    code, output, _ = run("federation", "init", "fed", *given)
    assert code == 0
    assert "10 clients enrolled" in output
    names = {path.name for path in (tmp_path / "fed").iterdir()}
    assert {"authority.key", "trainer.key", "trainer.toml", "compute-2.toml", "client-10.cert"} <= names
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "fed").glob("*.key")} == {0o600}


# --- actors and broker ------------------------------------------------------------------------------------------------


@pytest.fixture
def demo(run: Run, tmp_path: Path) -> Path:
    """A trial federation whose broker does not exist."""
    url = f"mqtt://127.0.0.1:{free_port()}"
    assert run("federation", "init", "fed", "--computes", "2", "--clients", "1", "--broker", url)[0] == 0
    (tmp_path / "fed/client-1.csv").write_text("x\n1\n")
    return tmp_path / "fed"


def waits_for_broker(command: list[str]) -> str:
    """What a command reports that waits for a broker, until SIGTERM ends it."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        log = ""
        while "cannot reach broker at mqtt://127.0.0.1:" not in log:
            line = waiting.stderr.readline()
            assert line, log
            log += line
        waiting.terminate()
        assert waiting.wait(PATIENCE_S) == 0
    return log


def test_an_unreachable_broker_is_one_line(demo: Path) -> None:
    log = waits_for_broker([sys.executable, "-m", "dca_proto.cli", "client", str(demo / "client-1.toml")])
    assert "is it running?; trying again" in log
    assert "Traceback" not in log


def test_a_device_without_the_command_line_prints_the_same(demo: Path) -> None:
    hidden = (
        "import sys; sys.modules.update(dict.fromkeys(['typer', 'rich', 'scipy', 'iotcore', 'sklearn', 'psutil']))\n"
    )
    code = hidden + "from dca_proto.__main__ import main; sys.exit(main())"
    log = waits_for_broker([sys.executable, "-c", code, str(demo / "client-1.toml"), "--log-json"])
    lost = json.loads(log.splitlines()[-1])
    assert (lost["event"], lost["level"]) == ("Disconnected", "warning")


def test_a_trainer_without_the_command_line_needs_a_round_and_reports_an_abort(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run_round(*_: object) -> None:
        raise RoundAborted("too few", contributors=5, needed=7)

    monkeypatch.setattr(device.Device, "run_round", run_round)
    with pytest.raises(UsageError, match=r"needs the section \[round\]"):
        device.run(demo / "trainer.toml")
    with (demo / "trainer.toml").open("a") as file:
        file.write('[round]\nstatistic = "mean"\ncolumns = ["x"]\nbounds = { x = [0, 1] }\nepsilon = 1\ndelta = 1e-6\n')
    assert device.run(demo / "trainer.toml") == 3
    assert "5 clients contributed, at least 7 were needed; nothing was released" in capsys.readouterr().err


def test_only_a_trainer_holds_and_resumes_rounds(demo: Path) -> None:
    client = device.load(demo / "client-1.toml")
    request = TestFederation(3, 2, name="unused").request()
    for work in (client.run_round(request), client.resume()):
        with pytest.raises(UsageError, match="only a trainer"):
            complete(work)


def test_an_actor_of_another_role_is_refused(run: Run, demo: Path) -> None:
    line = refused(run, "client", str(demo / "trainer.toml"), code=5)
    assert "found [trainer] of the actors' sections, expected one: [client]" in line


@pytest.mark.parametrize(
    ("given", "message", "code"),
    [
        ((), "no round to run: give --statistic", 2),
        (("--statistic", "mean"), "round: Object missing required field", 5),
        (("--bounds", "x=1"), "bounds of column 'x': found '1', expected two numbers LO and HI", 5),
        (("--json", "nowhere/result.json"), "cannot write nowhere/result.json: folder nowhere does not exist", 8),
        (("--json", "fed"), "cannot write fed: it is a folder", 8),
        (("--bounds", "x=1:2,x=1:2"), "each column once", 5),
        (("--parameter", "edges=x"), "expected NAME=JSON", 2),
        (("--resume", "--computes", "a,b"), "--resume runs no new round: leave out --computes", 2),
        (("--resume",), "nothing to resume: the store has", 2),
        (
            ("--statistic", "mean", "--columns", "x", "--bounds", "x=0:1", "--epsilon", "0", "--delta", "1e-6"),
            "epsilon",
            2,
        ),
    ],
)
def test_a_trainers_mistakes_are_named_before_anything_starts(
    run: Run, demo: Path, given: tuple[str, ...], message: str, code: int
) -> None:
    found, _, error = run("trainer", str(demo / "trainer.toml"), *given)
    assert found == code
    assert message in error.splitlines()[-1]


@pytest.mark.parametrize(
    ("given", "message", "code"),
    [
        (("--broker", "rabbit"), "--broker 'rabbit': expected one of auto, embedded, mosquitto", 2),
        (("--tls-key", "k"), "TLS needs --tls-certificate, --tls-key and --tls-ca", 2),
        (("--require-certificate",), "TLS needs", 2),
        (("--tls-key", "k", "--tls-ca", "k", "--tls-certificate", "k"), "cannot read k: No such file", 5),
        (("--passwords", "p"), "need --federation", 2),
        (("--federation", "fed/federation.toml"), "--federation needs --passwords", 2),
        (("--federation", "no.toml", "--passwords", "p"), "no.toml does not exist", 5),
    ],
)
def test_a_brokers_mistakes_are_named(run: Run, demo: Path, given: tuple[str, ...], message: str, code: int) -> None:
    assert message in refused(run, "broker", "--port", "0", *given, code=code)


# --- inspect ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played() -> tuple[TestFederation, Network]:
    """A network after a round, with a second one in its middle: every kind of record and message is there."""
    actors = TestFederation(3, 2, name="inspected")
    network = actors.network()
    network.command(actors.trainer_identity.id, actors.request())
    network.advance(network.now_ms + 1000)
    network.tamper = lambda envelope: () if _is_lost(envelope.payload) else (envelope,)
    network.command(actors.trainer_identity.id, actors.request())
    network.advance(network.now_ms + 1000)
    return actors, network


def _is_lost(payload: bytes) -> bool:
    """Receipts and answers: clients send again, and Compute nodes wait for each other."""
    frame = decode_frame(payload)
    return isinstance(frame, Receipt) or (isinstance(frame, Signed) and isinstance(decode_body(frame.body), Answer))


def secrets_of(network: Network) -> set[str]:
    """Secret bytes that the stores and messages hold, in hexadecimal."""
    found: set[bytes] = set()
    for records in network.stores.values():
        for (table, _), value in records.items():
            if table == EPOCHS:
                found.add(value)
            elif table == "client-round" and (made := msgspec.msgpack.decode(value, type=StoredClientRound).outbound):
                found.add(made.receipt)
            elif table == "contribution":
                kept = HeldContribution(value)
                found |= {kept.tags, kept.y}
            elif table == "list":
                found.add(msgspec.msgpack.decode(value, type=StoredList).tags)
            elif table == ROUNDS:
                found.add(msgspec.msgpack.decode(value, type=StoredTrainerRound).reply_secret)
    return {value.hex() for value in found if value}  # a node may hold nobody


def test_a_store_is_shown_without_its_secrets(run: Run, tmp_path: Path, played: tuple[TestFederation, Network]) -> None:
    _, network = played
    secret = secrets_of(network)
    assert len(secret) > 8
    shown_kinds: set[str] = set()
    for actor_id, records in network.stores.items():
        path = tmp_path / f"{actor_id.hex()}.db"
        asyncio.run(_write_store(path, actor_id, records))
        for given in ((), ("--json", "-")):
            code, output, error = run("inspect", str(path), *given)
            assert code == 0, error
            assert not [value for value in secret if value in output.replace("\n", "")]
        shown_kinds |= {record["kind"] for record in parsed(output, "inspect")}
        assert not [record for record in json.loads(output) if "unreadable" in record]
        assert len(json.loads(output)) == len(records)
    assert shown_kinds >= {"epoch", "hello", "client-round", "announcement", "ledger", "seen"}, "clients'"
    assert shown_kinds >= {"session", "round", "contribution", "list", "charges", "trainer-round"}, "the others'"
    assert not list(tmp_path.glob("*-wal")), "inspecting leaves nothing behind"


async def _write_store(path: Path, actor_id: bytes, records: dict[tuple[str, bytes], bytes]) -> None:
    store = SqliteStore(path, bytes(32))
    try:
        await store.view(actor_id).commit([Persist(table, key, value) for (table, key), value in records.items()])
    finally:
        await store.close()


def test_every_message_is_shown_without_its_secrets(played: tuple[TestFederation, Network]) -> None:
    _, network = played
    secret, kinds = secrets_of(network), set()
    for envelope in network.sent:
        plain = describe_message(envelope.payload)
        assert describe_message(split(envelope.payload)[0]) == plain, "also as the broker carries it"
        kinds.add(plain.get("message", plain["frame"]))
        text = json.dumps(plain)
        assert not [value for value in secret if value in text]
        assert "signature" not in text
    assert kinds >= {"EpochKey", "Hello", "Announcement", "Contribution", "Receipt", "Progress", "Close"}
    assert kinds >= {"Answer", "Sealed"}, "lists and partial sums are sealed"


def test_a_message_can_be_given_in_many_ways(run: Run, tmp_path: Path) -> None:
    payload = encode(Contribution(bytes(16), bytes(16), bytes(range(40))))
    (tmp_path / "m.bin").write_bytes(payload)
    (tmp_path / "m.txt").write_text(payload.hex() + "\n")
    texts = (payload.hex(), base64.b64encode(payload).decode())
    shown = [run("inspect", *given)[1] for given in (("m.bin",), ("m.txt",), *(("--hex", text) for text in texts))]
    assert len(set(shown)) == 1
    assert "<40 bytes>" in shown[0]
    assert bytes(range(40)).hex()[:20] not in shown[0]


@pytest.mark.parametrize(
    ("content", "message", "code"),
    [
        (b"", "0 bytes that are not a message", 5),
        (b"\xff\xff", "2 bytes that are not a message", 5),
        (b"hello there", "hexadecimal or base64, found neither", 5),
        (b"# Identity of a dca client.", "is a key file, which is secret", 5),
        (b"SQLite format 3\0" + bytes(100), "is not an actor's store|is damaged", 8),
        (split(bytes(5000), 1024)[0], "one part of a larger message", 5),
    ],
)
def test_an_unreadable_dump_is_refused(run: Run, tmp_path: Path, content: bytes, message: str, code: int) -> None:
    (tmp_path / "file").write_bytes(content)
    line = refused(run, "inspect", "file", code=code)
    assert any(part in line for part in message.split("|"))


def test_inspect_reads_an_existing_file_also_while_its_actor_runs(run: Run, tmp_path: Path) -> None:
    assert "give a file, or --hex" in refused(run, "inspect")
    assert "cannot read nowhere" in refused(run, "inspect", "nowhere", code=5)

    async def while_in_use() -> tuple[str, None]:
        store = SqliteStore(tmp_path / "s.db", bytes(32))
        await store.commit([Persist("anything", b"k", b"v")])
        return run("inspect", "s.db")[1], await store.close()

    assert "anything" in asyncio.run(while_in_use())[0]
