"""`dca ledger` shows the spending of a device or a trainer, from stores that real actors left behind."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from schemas import parsed

from dca_proto.cli import main
from dca_proto.privacy import accounting
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.privacy.rounding import at_least, at_most
from dca_proto.protocol.client.round import DECLINES as DECLINED
from dca_proto.protocol.client.round import ROUNDS, DeclinedRound
from dca_proto.protocol.effects import Channel, Forget, Persist
from dca_proto.protocol.ledger import TABLE as LEDGER
from dca_proto.protocol.ledger import Charge
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.wire.codec import encode
from dca_proto.runtime.clock import now_ms
from dca_proto.runtime.keyfile import read_identity, write_identity
from dca_proto.runtime.spending import read_ledger_view, spending
from dca_proto.runtime.store import SqliteStore
from dca_proto.testing import Network, TestFederation

Run = Callable[..., tuple[int, str, str]]
LIMITS = """
clients_min = 1
honest_min = 1
epsilon_per_round_max = 1
epsilon_per_period_max = 2
delta_max = 1e-6
period_days = 36500
bounds = { x = [-1, 1] }
"""
ROLE = """
[{role}]
identity = "{role}.key"
federation = "federation.toml"
store = "{role}.db"
[broker]
url = "mqtt://localhost"
[{limits}]
"""
ACCOUNT = "epsilon = 3\ndelta = 1e-6\nperiod_days = 36500\n"
SCALED = {"columns": ["x"], "centre": [0.0], "scale": [10.0], "bound": [1.0]}
MU = accounting.mu_of(1.0, 1e-6)


def store_key(path: Path) -> bytes:
    """That of the identity beside a store, if there is one."""
    identity = path.with_suffix(".key")
    return read_identity(identity, path.stem).store_key if identity.exists() else bytes(32)


async def save(path: Path, records: dict[tuple[str, bytes], bytes], owner: bytes = b"") -> None:
    store = SqliteStore(path, store_key(path))
    try:
        await store.view(owner).commit([Persist(table, key, value) for (table, key), value in records.items()])
    finally:
        await store.close()


@pytest.fixture(scope="module")
def played() -> tuple[TestFederation, Network]:
    """Two rounds with a result, one aborted, three that the clients declined, and one that no client received."""
    policy = Policy(
        clients_min=1, honest_min=1, epsilon_per_round_max=1, epsilon_per_period_max=2, delta_max=1e-6,
        period_days=36500, bounds={"x": (-1.0, 1.0)},
    )  # fmt: skip
    actors = TestFederation(4, 2, name="booked", policy=policy)
    network = actors.network()

    def hold(**changes: object) -> None:
        network.command(actors.trainer_identity.id, actors.request(**changes))
        network.advance(network.now_ms + 1000)

    hold()
    network.tamper = lambda one: [one] if one.to.channel is not Channel.COMPUTE or one.sender in no_clients else []
    no_clients = {actors.trainer_identity.id, *actors.computes}
    hold()  # no contribution comes: aborted, and returned
    network.advance(network.now_ms + 200_000)
    network.tamper = lambda one: [one]
    hold()
    for changes in ({"parameters": SCALED}, {"epsilon": 1.5}, {"delta": 1e-5}):
        hold(**changes)
    network.tamper = lambda one: [one] if one.to.channel is not Channel.ANNOUNCE else []
    hold(epsilon=0.5)
    return actors, network


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, played: tuple[TestFederation, Network]) -> Path:
    """A client's, a trainer's and a Compute node's files and stores."""
    actors, network = played
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "federation.toml").write_text(actors.federation.to_toml())
    (tmp_path / "client.toml").write_text(ROLE.format(role="client", limits="policy") + LIMITS)
    (tmp_path / "trainer.toml").write_text(ROLE.format(role="trainer", limits="account") + ACCOUNT)
    (tmp_path / "compute.toml").write_text(ROLE.format(role="compute", limits="floors"))
    for name, identity in (
        ("client", actors.client_identities[0]),
        ("trainer", actors.trainer_identity),
        ("compute", actors.compute_identities[0]),
    ):
        write_identity(tmp_path / f"{name}.key", name, identity)
        asyncio.run(save(tmp_path / f"{name}.db", network.stores[identity.id]))
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], folder: Path) -> Run:
    """Calls `dca ledger` there: exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(("ledger", *arguments))
        output, error = capsys.readouterr()
        return code, output, error

    return call


def refused(run: Run, *arguments: str, code: int = 2) -> str:
    given, output, error = run(*arguments)
    assert (given, output) == (code, "")
    (line,) = error.splitlines()
    assert line.startswith("dca: ")
    return line


def test_a_client_sees_its_requests_contributions_and_declines(run: Run) -> None:
    code, output, error = run("client.toml")
    assert (code, error) == (0, "")
    spent = accounting.epsilon_of(accounting.compose([MU, MU]), 1e-6)
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert lines[0].startswith("client of federation booked, ")
    assert [line.split()[0] for line in lines if line.endswith(("counts", "returned"))] == ["1", "2", "3"]
    assert "2 2023-11-14 22:13:21 sum trainer 1 1e-06 0.2368 returned" in lines
    assert f"spent epsilon {at_least(spent)} at delta 1e-06 in the last 36500 days (2 charges, mu = 0.3348)" in lines
    assert "left epsilon 1.283 at delta 1e-06 for one more round, of 2 in total; at most 1 in each round" in lines
    assert any(line.endswith("bounds x within -10 to 10 x within -1 to 1") for line in lines)
    assert any(line.endswith("epsilon 1.5 at delta 1e-06 <= 1 at delta 1e-06") for line in lines)
    assert "in total 1 x bounds, 1 x epsilon, 1 x delta" in lines
    assert "warning" not in output


def test_the_json_has_the_same_content(run: Run, folder: Path) -> None:
    code, output, error = run("client.toml", "--json", "-")
    assert code == 0
    assert "charged" in error, "people read the table there"
    plain = parsed(output, "ledger")
    assert (plain["role"], plain["federation"], plain["warnings"]) == ("client", "booked", [])
    assert (plain["epsilon_allowed"], plain["epsilon_per_round_max"], plain["delta"]) == (2.0, 1.0, 1e-6)
    assert plain["mu_spent"] == pytest.approx(MU * 2**0.5)
    assert plain["epsilon_spent"] == accounting.epsilon_of(plain["mu_spent"], 1e-6)
    assert [(one["number"], one["returned"], one["counts"]) for one in plain["charges"]] == [
        (1, False, True), (2, True, False), (3, False, True),
    ]  # fmt: skip
    assert {one["trainer_name"] for one in plain["charges"]} == {"trainer"}
    assert [one["reason"] for one in plain["declined"]] == ["bounds", "epsilon", "delta"]
    assert plain["declined"][1]["epsilon"] == 1.5
    assert run("client.toml", "--json", "out.json")[0] == 0
    assert json.loads((folder / "out.json").read_text()) == plain


def test_the_remaining_budget_is_what_the_policy_allows(folder: Path, played: tuple[TestFederation, Network]) -> None:
    book, now_ms = read_ledger_view(folder / "client.toml"), played[1].now_ms
    assert book.budget_limit is not None
    left = spending(book, 1e-6, now_ms).epsilon_left
    assert book.budget_limit.check(PrivacyCost.of(left, 1e-6), book.ledger, now_ms) is None
    assert book.budget_limit.check(PrivacyCost.of(left * 1.0001, 1e-6), book.ledger, now_ms) is not None


def test_rounds_of_reports_are_shown_at_delta_0_with_the_rest_of_either_kind(
    run: Run, folder: Path, played: tuple[TestFederation, Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two Gaussian rounds and a report of ε = 0.125, of a limit of 2."""
    at(monkeypatch, played[1].now_ms)
    mu = accounting.mu_of_pure(0.125)
    own = {(LEDGER, b"r" * 16): charge(mu=mu, epsilon=0.125, delta=0.0, number=4)[LEDGER, b"r" * 16]}
    asyncio.run(save(folder / "client.db", own))
    spent = accounting.compose([MU, MU, mu])
    rest = (accounting.mu_of(2.0, 1e-6) ** 2 - spent**2) ** 0.5
    plain = parsed(run("client.toml", "--json", "-")[1], "ledger")
    assert plain["mu_spent"] == pytest.approx(spent)
    assert plain["pure_spent"] == 0.125
    assert plain["epsilon_spent"] == pytest.approx(accounting.epsilon_of(spent, 1e-6))
    assert plain["epsilon_left"] == pytest.approx(accounting.epsilon_of(rest, 1e-6), rel=1e-6)
    assert plain["pure_left"] == pytest.approx(accounting.pure_of_mu(rest), rel=1e-6)
    output = " ".join(run("client.toml")[1].split())
    assert "4 2023-11-14 22:13:20 sum 00000000 0.125 0 counts" in output
    line = f"spent epsilon {at_least(plain['epsilon_spent'])} at delta 1e-06 in the last 36500 days (3 charges, mu = "
    assert f"{line}{at_least(plain['mu_spent'])}, those at delta 0 converted; their epsilons add up to 0.125)" in output
    left = f"left epsilon {at_most(plain['epsilon_left'])} at delta 1e-06 for one more round, of 2 in total"
    assert f"{left}, or {at_most(plain['pure_left'])} at delta 0; at most 1 in each round" in output
    assert plain["epsilon_for_reports"] is None
    policy = folder / "client.toml"
    policy.write_text(policy.read_text() + "epsilon_for_reports = 0.25\n")
    plain = parsed(run("client.toml", "--json", "-")[1], "ledger")
    sums = accounting.compose([MU, MU])
    assert plain["mu_spent"] == pytest.approx(sums)
    assert plain["epsilon_spent"] == pytest.approx(0.125 + accounting.epsilon_of(sums, 1e-6))
    assert (plain["epsilon_for_reports"], plain["pure_left"]) == (0.25, 0.125)
    rest = (accounting.mu_of(1.75, 1e-6) ** 2 - sums**2) ** 0.5
    assert plain["epsilon_left"] == pytest.approx(accounting.epsilon_of(rest, 1e-6), rel=1e-6)
    output = " ".join(run("client.toml")[1].split())
    assert f"mu = {at_least(sums)}, and epsilon 0.125 at delta 0)" in output
    assert "for one more round, and 0.125 at delta 0, of 2 in total, 0.25 of it for reports of delta 0;" in output


def at(monkeypatch: pytest.MonkeyPatch, now_ms: int) -> None:
    monkeypatch.setattr("time.time_ns", lambda: now_ms * 1_000_000)


def test_a_trainers_account_counts_every_announced_round(
    run: Run, played: tuple[TestFederation, Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two with a result and one that goes on; those without contributions came back, signed by all Compute nodes."""
    at(monkeypatch, played[1].now_ms)
    plain = parsed(run("trainer.toml", "--json", "-")[1], "ledger")
    assert plain["role"] == "trainer"
    spent = accounting.compose([MU, MU, accounting.mu_of(0.5, 1e-6)])
    assert plain["mu_spent"] == pytest.approx(spent)
    assert [one["returned"] for one in plain["charges"]] == [False, True, False, True, True, True, False]
    assert "declined" not in run("trainer.toml")[1]
    free = (accounting.mu_of(3.0, 1e-6) ** 2 - spent**2) ** 0.5
    assert plain["epsilon_left"] == pytest.approx(accounting.epsilon_of(free, 1e-6), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "spent"), [("client", "2 charges, mu = 0.3348"), ("trainer", "3 charges, mu = 0.3571")]
)
def test_a_store_alone_shows_what_is_spent_at_a_delta(run: Run, name: str, spent: str) -> None:
    plain = parsed(run(f"{name}.db", "--delta", "1e-7", "--json", "-")[1], "ledger")
    assert (plain["role"], plain["delta"], plain["federation"]) == (name, 1e-7, None)
    assert plain["epsilon_spent"] == accounting.epsilon_of(plain["mu_spent"], 1e-7)
    assert plain["epsilon_left"] is plain["epsilon_allowed"] is plain["period_days"] is None
    assert plain["charges"][0]["trainer_name"] is None
    output = run(f"{name}.db")[1]
    assert f"at delta 1e-05 in total ({spent}); name the actor's TOML file to see what is left" in output


def test_a_charge_past_its_period_is_shown_and_does_not_count(run: Run, folder: Path) -> None:
    text = (folder / "client.toml").read_text().replace("period_days = 36500", "period_days = 30")
    (folder / "client.toml").write_text(text)
    output = run("client.toml")[1]
    assert output.count("past its period") == 2
    assert "spent     epsilon 0 at delta 1e-06 in the last 30 days (0 charges, mu = 0)" in output
    assert "left      epsilon 2 at delta 1e-06 for one more round, of 2 in total" in output


def test_no_store_and_an_empty_one_hold_nothing(run: Run, folder: Path) -> None:
    (folder / "client.db").unlink()
    assert "client.db is missing or empty, but had" in refused(run, "client.toml", code=8)
    (folder / "client.db-counter").unlink()
    assert "0 charges" in run("client.toml")[1]
    assert not (folder / "client.db").exists(), "looking makes nothing"
    asyncio.run(save(folder / "client.db", {}))
    for name in ("client.toml", "client.db"):
        code, output, _ = run(name)
        assert code == 0
        assert "epsilon 0 at delta" in output


def test_a_file_that_is_no_ledger_is_named(run: Run, folder: Path, played: tuple[TestFederation, Network]) -> None:
    assert "cannot read nowhere.toml: No such file or directory" in refused(run, "nowhere.toml", code=5)
    assert "found [compute] of the actors' sections, expected one: [client] or [trainer]" in refused(
        run, "compute.toml", code=5
    )
    assert "compute.db is a Compute node's, which spends nothing" in refused(run, "compute.db", code=5)
    assert "federation.toml: found none of the actors' sections" in refused(run, "federation.toml", code=5)
    assert "--delta is for a store only; the limits in client.toml are at delta 1e-06" in refused(
        run, "client.toml", "--delta", "1e-6"
    )
    assert "delta" in refused(run, "client.db", "--delta", "1")
    assert "folder no does not exist" in refused(run, "client.db", "--json", "no/out.json", code=8)
    (folder / "half.db").write_bytes((folder / "client.db").read_bytes()[:5000])
    assert "half.db" in refused(run, "half.db", code=8)
    asyncio.run(save(folder / "odd.db", {(LEDGER, bytes(16)): b"\x93\x01\x02\x03"}))
    assert "store odd.db: a record in the store's table 'ledger' cannot be read" in refused(run, "odd.db", code=5)
    network = played[1]
    for owner in played[0].clients[:2]:
        asyncio.run(save(folder / "many.db", network.stores[owner], owner))
    assert "many.db is shared by many actors" in refused(run, "many.db", code=5)


def test_a_ledger_is_read_while_its_actor_writes(run: Run, folder: Path) -> None:
    """The transaction that has just ended is there, with the checks of the store's seal and counter."""

    async def while_in_use() -> tuple[dict[str, Any], dict[str, Any]]:
        store = SqliteStore(folder / "client.db", store_key(folder / "client.db"))
        try:
            before = json.loads(run("client.toml", "--json", "-")[1])
            late = Charge(bytes(16), "late", bytes(16), 0.1, 0.1, 1e-6, now_ms(), before["charges"][-1]["number"] + 1)
            await store.commit([Persist(LEDGER, bytes(16), encode(late))])
            after = json.loads(run("client.toml", "--json", "-")[1])
            await store.commit([Forget(LEDGER, bytes(16))])  # reading has left nothing locked
            return before, after
        finally:
            await store.close()

    before, after = asyncio.run(while_in_use())
    assert [one["statistic"] for one in after["charges"]] == [*(one["statistic"] for one in before["charges"]), "late"]


def test_a_ledger_that_looks_like_an_old_copy_warns(
    run: Run, folder: Path, played: tuple[TestFederation, Network]
) -> None:
    records = dict(played[1].stores[played[0].clients[0]])
    charges = {key: msgspec.msgpack.decode(value, type=Charge) for key, value in records.items() if key[0] == LEDGER}
    (second,) = [key for key, charge in charges.items() if charge.number == 2]
    del records[second]
    declined = DeclinedRound(
        number=9, round_id=b"r" * 16, statistic="sum\x1b[31m", trainer=bytes(16), epsilon=float("nan"), delta=1e-6,
        reason="ledger", found="charge number 3 comes next", expected="a number above 7", at_ms=1_700_000_000_000,
    )  # fmt: skip
    records[DECLINED, declined.round_id] = msgspec.msgpack.encode(declined)
    for file in ("client.db", "client.db-counter"):
        (folder / file).unlink()
    asyncio.run(save(folder / "client.db", records))
    code, output, _ = run("client.toml")
    shown = " ".join(output.split())
    assert code == 0
    assert "1 of the charges 1 to 3 are missing, the first of them 2: more was spent than is shown" in shown
    reason = "because a Compute node reported that this ledger is an old copy (charge number 3"
    assert reason in shown
    assert "Otherwise the node lies or errs" in shown
    assert "\x1b[31m" not in shown
    plain = parsed(run("client.toml", "--json", "-")[1], "ledger")
    assert len(plain["warnings"]) == 2
    assert plain["declined"][-1]["epsilon"] is None, "JSON knows no NaN"


def charge(**changes: object) -> dict[tuple[str, bytes], bytes]:
    sound = Charge(b"r" * 16, "sum", bytes(16), 0.2, 1.0, 1e-6, 1_700_000_000_000, 1)
    return {(LEDGER, b"r" * 16): msgspec.msgpack.encode(msgspec.structs.replace(sound, **changes))}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"at_ms": 1 << 62}, "an entry is of a time after the year 9999"),
        ({"at_ms": -1}, "an entry is of a time before 1970"),
        ({"mu": 1e300}, "charge 1 has mu = 1e+300, expected above 0 and at most 20"),
        ({"mu": -1.0}, "charge 1 has mu = -1"),
        ({"mu": 0.0}, "charge 1 has mu = 0"),
        ({"mu": float("nan")}, "charge 1 has mu = nan"),
        ({"epsilon": float("inf")}, "charge 1 has epsilon = inf"),
        ({"delta": float("nan")}, "charge 1 has delta = nan"),
        ({"delta": -1e-9}, "charge 1 has delta = -1e-09"),
        ({"delta": 0.0, "epsilon": 501.0}, "charge 1 has epsilon = 501, expected above 0 and at most 500"),
        ({"delta": 0.0, "mu": 100.0}, "charge 1 has mu = 100"),
        ({"number": 0}, "a charge has number 0"),
    ],
)
def test_impossible_figures_are_reported_as_damage_in_one_line(
    run: Run, folder: Path, changes: dict[str, object], message: str
) -> None:
    asyncio.run(save(folder / "odd.db", charge(**changes)))
    error = refused(run, "odd.db", code=5)
    assert f"store odd.db: {message}" in error
    assert error.endswith("not with an old copy, which forgets what was spent or sent")


def test_a_damaged_time_of_a_decline_is_named(run: Run, folder: Path) -> None:
    declined = DeclinedRound(
        number=1, round_id=b"r" * 16, statistic="sum", trainer=bytes(16), epsilon=1.0, delta=1e-6, reason="clients",
        found="n_min = 1", expected="n_min >= 2", at_ms=1 << 62,
    )  # fmt: skip
    asyncio.run(save(folder / "odd.db", {(DECLINED, declined.round_id): msgspec.msgpack.encode(declined)}))
    assert "an entry is of a time after the year 9999" in refused(run, "odd.db", code=5)


def test_a_charge_of_an_immense_number_takes_no_immense_time(run: Run, folder: Path) -> None:
    asyncio.run(save(folder / "odd.db", charge(number=1 << 60)))
    code, output, _ = run("odd.db")
    assert code == 0
    assert f"{(1 << 60) - 1} of the charges 1 to {1 << 60} are missing, the first of them 1: more was" in output


def test_no_secret_is_printed(run: Run, played: tuple[TestFederation, Network]) -> None:
    actors, network = played
    hidden = {value.hex() for (table, _), value in network.stores[actors.clients[0]].items() if table == "epoch"}
    hidden |= {one.seed.hex() for one in (actors.client_identities[0], actors.trainer_identity)}
    assert ROUNDS in {table for table, _ in network.stores[actors.clients[0]]}
    for name in ("client.toml", "trainer.toml"):
        output = "".join(run(name, "--json", "-")[1:])
        assert not [secret for secret in hidden if secret in output]


def test_help_has_examples(run: Run) -> None:
    code, output, _ = run("--help")
    assert code == 0
    assert "dca ledger client.toml" in output


def test_hardening_2_an_edited_charge_is_not_shown_as_if_nothing_was_spent(run: Run, folder: Path) -> None:
    """By its TOML file, which names the key, the store is authenticated; by itself it is shown with a warning."""
    with closing(sqlite3.connect(folder / "client.db")) as connection, connection:
        key, value = connection.execute("SELECT key, value FROM records WHERE kind = 'ledger'").fetchone()
        charge = msgspec.structs.replace(msgspec.msgpack.decode(value, type=Charge), returned=True)
        connection.execute("UPDATE records SET value = ? WHERE key = ?", (msgspec.msgpack.encode(charge), key))
    line = refused(run, "client.toml", code=8)
    assert f"store {folder / 'client.db'} is damaged (record {key.hex()} of table " in line
    assert "start with a fresh one (a client enrolled anew), not with an old copy" in line
    code, shown, _ = run("client.db")
    assert code == 0
    assert "the records were not authenticated" in shown
