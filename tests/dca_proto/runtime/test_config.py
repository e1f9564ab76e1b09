"""An actor's TOML file, its data and its round: what is wrong is named in one line, with file, section and key."""

from __future__ import annotations

import asyncio
import math
import sys
import tomllib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from structlog.testing import capture_logs

from dca_proto.cli import client, compute, trainer
from dca_proto.crypto.sealing import Identity
from dca_proto.errors import UsageError
from dca_proto.protocol.federation import Federation, Member, enrol, sign_federation
from dca_proto.protocol.params import MIB, Limits
from dca_proto.protocol.policy import BudgetLimit, Policy
from dca_proto.runtime.config import ClientFiles, read_config
from dca_proto.runtime.device import load
from dca_proto.runtime.keyfile import write_certificate, write_identity
from dca_proto.runtime.request import RoundSettings, open_round
from dca_proto.runtime.settings import convert
from dca_proto.runtime.table import Table, read_csv
from dca_proto.runtime.transport import CLIENT_LIMITS, InboxLimits

AUTHORITY, CLIENT, FIRST, SECOND, TRAINER, STRANGER = (Identity(bytes([index]) * 32) for index in range(6))
FEDERATION = sign_federation(
    AUTHORITY,
    Federation(
        "demo",
        AUTHORITY.public_key,
        (Member("hospital-a", FIRST.public_key), Member("hospital-b", SECOND.public_key)),
        (Member("lab", TRAINER.public_key),),
    ),
)
CLIENT_TEXT = """
[client]
identity = "client.key"
federation = "federation.toml"
data = "readings.csv"
store = "client.db"
[broker]
url = "mqtt://localhost"
"""
TRAINER_TEXT = """
[trainer]
identity = "trainer.key"
federation = "federation.toml"
store = "trainer.db"
[broker]
url = "mqtt://localhost"
"""


COMPUTE_TEXT = TRAINER_TEXT.replace("trainer", "compute")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of an actor of each role, all in order."""
    (tmp_path / "federation.toml").write_text(FEDERATION.to_toml())
    (tmp_path / "readings.csv").write_text("x,y\n1,2\n,4\n")
    for role, identity in (("client", CLIENT), ("compute", FIRST), ("trainer", TRAINER)):
        write_identity(tmp_path / f"{role}.key", role, identity)
    write_certificate(tmp_path / "client.cert", FEDERATION, enrol(AUTHORITY, FEDERATION, CLIENT.public_key, (1 << 43)))
    (tmp_path / "client.toml").write_text(CLIENT_TEXT)
    (tmp_path / "trainer.toml").write_text(TRAINER_TEXT)
    (tmp_path / "compute.toml").write_text(COMPUTE_TEXT)
    return tmp_path


def refusal(folder: Path, text: str, name: str = "client.toml") -> str:
    (folder / name).write_text(text)
    with pytest.raises(UsageError) as caught:
        load(folder / name)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_a_client_is_loaded_and_paths_are_relative_to_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    device = load(folder / "client.toml")
    assert (device.role, device.id) == ("client", CLIENT.id)
    assert device.config.files.store == folder / "client.db"
    assert not (folder / "client.db").exists(), "loading opens nothing"
    assert device.config.policy.clients_min == 20


@pytest.mark.parametrize(("role", "limits"), [("client", CLIENT_LIMITS), ("trainer", InboxLimits())])
def test_a_client_gets_little_memory_for_what_arrives(folder: Path, role: str, limits: InboxLimits) -> None:
    async def found() -> InboxLimits:
        async with load(folder / f"{role}.toml").open() as parts:
            return parts.transport.inbox._limits

    assert asyncio.run(found()) == limits


@pytest.mark.parametrize(("line", "most"), [("", 4096 * MIB), ("contributions_mib = 64", 64 * MIB)])
def test_a_compute_nodes_file_limits_what_contributions_take(folder: Path, line: str, most: int) -> None:
    (folder / "compute.toml").write_text(COMPUTE_TEXT.replace("[compute]", f"[compute]\n{line}"))

    async def found() -> Limits:
        async with load(folder / "compute.toml").open() as parts:
            return parts.actor._limits

    limits = asyncio.run(found())
    assert limits.node_contributions.most == most
    assert limits == msgspec.structs.replace(Limits(), node_contributions=limits.node_contributions)


@pytest.mark.parametrize("wrong", ["0", "1e9", '"4 GiB"'])
def test_a_wrong_limit_of_contributions_is_refused(folder: Path, wrong: str) -> None:
    text = COMPUTE_TEXT.replace("[compute]", f"[compute]\ncontributions_mib = {wrong}")
    assert "contributions_mib" in refusal(folder, text, "compute.toml")
    in_trainer = TRAINER_TEXT.replace("[trainer]", "[trainer]\ncontributions_mib = 64")
    assert "contributions_mib" in refusal(folder, in_trainer, "trainer.toml")


def test_a_program_gives_a_client_its_data_instead_of_a_file(folder: Path) -> None:
    table = Table(["x"], np.array([[1.0]]))
    (folder / "readings.csv").unlink()
    assert load(folder / "client.toml", table).id == CLIENT.id, "the file's CSV is not read"
    (folder / "client.toml").write_text(CLIENT_TEXT.replace('data = "readings.csv"\n', ""))
    assert load(folder / "client.toml", table).id == CLIENT.id
    with pytest.raises(UsageError, match="a trainer has no data of its own"):
        load(folder / "trainer.toml", table)


def test_a_program_names_a_file_as_text_and_is_told_what_data_are(folder: Path) -> None:
    path, table = str(folder / "client.toml"), Table(["x"], [[5.0]])
    assert load(path, table).id == load(Path(path), table).id == CLIENT.id
    with pytest.raises(UsageError, match=r"found data of type list, expected a Table: Table\(columns, rows\)"):
        load(path, [[5.0]])  # type: ignore[arg-type]


def test_names_of_members_become_ids(folder: Path) -> None:
    text = CLIENT_TEXT + '[policy]\ntrainers = ["lab"]\ntrusted_computes = ["hospital-a"]\nstatistics = ["mean"]\n'
    (folder / "client.toml").write_text(text)
    assert read_config(folder / "client.toml").policy.trainers == (TRAINER.id.hex(),)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("store =", "stroe =", "unknown key 'stroe' (did you mean 'store'?); [client] keys: identity,"),
        ('data = "readings.csv"\n', "", "found no data, expected [client] data"),
        ('store = "client.db"', "store = 3", "[client] expected the name of a file, got `int` - at `$.store`"),
        (
            "[client]",
            "[cleint]",
            "found none of the actors' sections, expected one: [client] or [compute] or [trainer]",
        ),
        ("[broker]", "[brokr]", "unknown key 'brokr' (did you mean 'broker'?); sections: client, broker, policy"),
        ('[broker]\nurl = "mqtt://localhost"', "", "[broker] is missing"),
        ('[broker]\nurl = "mqtt://localhost"', "[[broker]]", "broker is a value, expected the section [broker]"),
        ("url =", "ulr =", "unknown key 'ulr' (did you mean 'url'?); [broker] keys:"),
        ("mqtt://", "http://", "expected mqtt://host"),
        ("[client]", "[client", "is not TOML"),
        ("federation.toml", "nowhere.toml", "nowhere.toml does not exist"),
        ("readings.csv", "nowhere.csv", "nowhere.csv: No such file or directory; check the path"),
        ("client.key", "trainer.key", "identity of a trainer, expected that of a client"),
    ],
)
def test_mistakes_in_a_clients_file_are_named(folder: Path, old: str, new: str, message: str) -> None:
    assert message in refusal(folder, CLIENT_TEXT.replace(old, new))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[policy]\nclients_mn = 3", "unknown key 'clients_mn' (did you mean 'clients_min'?); [policy] keys:"),
        ("[policy]\nclients_min = 'x'", "[policy] clients_min is a text, expected a whole number"),
        ("[policy]\ncomputes_min = 1", "policy: computes_min is 1; give at least 2"),
        ("[policy]\nepsilon_per_round_max = -1", "epsilon"),
        ("[policy]\ntrusted_computes = ['hospital-c']", "'hospital-c' is unknown (did you mean 'hospital-b'?)"),
        ("[policy]\ntrainers = ['lob']", "[policy] trainers: 'lob' is unknown (did you mean 'lab'?)"),
        ("[policy]\nstatistics = ['maen']", "'maen' is unknown (did you mean 'mean'?)"),
        ("[policy]\nbounds = { x = [0] }", "[policy] bounds[...] has 1 values, expected 2"),
        ("[policy]\nbounds = { x = [1, 0] }", "policy: bounds of 'x' are [1, 0]; give finite LOW < HIGH"),
        ("[policy]\nbounds = { z = [0, 1] }", "bounds of the policy: 'z' is unknown; known: x, y"),
        ("[policy]\nepsilon_per_period_max = inf", "policy: epsilon_per_period_max is inf; give a finite number"),
        ("[floors]\nclients_min = 3", "unknown key 'floors'; sections: client, broker, policy"),
        ("[account]\nepsilon = 3", "unknown key 'account'; sections: client, broker, policy"),
    ],
)
def test_mistakes_in_a_policy_are_named(folder: Path, text: str, message: str) -> None:
    assert message in refusal(folder, CLIENT_TEXT + text)


NAMES_A_POLICY = CLIENT_TEXT.replace("[broker]", 'policy = "policy.toml"\n[broker]')
FULL_POLICY = """
epsilon_per_round_max = 0.5
epsilon_per_period_max = 2
epsilon_for_reports = 0.5
period_days = 30
rounds_per_period_max = 1000
delta_max = 1e-6
clients_min = 100
honest_min = 50
colluders_min = 5
colluders_part_min = 0.01
computes_min = 2
dimension_max = 9
statistics = ["mean", "regression"]
bounds = { x = [0, 120] }
trainers = ["lab"]
trusted_computes = ["hospital-a"]
accept_p = 1
rows_of_many = true
sums_only = true
verified = true
"""


def test_a_policy_may_be_a_separate_file(folder: Path) -> None:
    (folder / "policy.toml").write_text(FULL_POLICY)
    (folder / "client.toml").write_text(NAMES_A_POLICY)
    policy = load(folder / "client.toml").config.policy
    assert policy == Policy(
        epsilon_per_round_max=0.5, epsilon_per_period_max=2.0, epsilon_for_reports=0.5, period_days=30.0,
        rounds_per_period_max=1000, delta_max=1e-6, clients_min=100, honest_min=50, colluders_min=5,
        colluders_part_min=0.01, computes_min=2,
        dimension_max=9, statistics=("mean", "regression"), bounds={"x": (0.0, 120.0)}, trainers=(TRAINER.id.hex(),),
        trusted_computes=("hospital-a",), accept_p=1, rows_of_many=True, sums_only=True, verified=True,
    )  # fmt: skip
    (folder / "client.toml").write_text(f"{CLIENT_TEXT}[policy]\n{FULL_POLICY}")
    assert load(folder / "client.toml").config.policy == policy, "the same figures as a section"
    assert {field.name for field in msgspec.structs.fields(Policy)} == {
        line.split(" = ")[0] for line in FULL_POLICY.split("\n") if line
    }, "none is left out here"


@pytest.mark.parametrize(
    ("client", "policy", "message"),
    [
        (NAMES_A_POLICY + "[policy]\n", "", "found both [client] policy = 'policy.toml' and the section [policy]"),
        (NAMES_A_POLICY, None, "policy.toml: No such file or directory; check the path"),
        (NAMES_A_POLICY, "clients_min", "policy.toml is not TOML"),
        (NAMES_A_POLICY, "[policy]\nclients_min = 3", "policy.toml: found the section [policy]; expected its keys"),
        (NAMES_A_POLICY, "clients_mn = 3", "policy.toml: unknown key 'clients_mn' (did you mean 'clients_min'?)"),
        (NAMES_A_POLICY, "honest_min = 0", "policy.toml: policy: honest_min is 0; give at least 1"),
        (NAMES_A_POLICY, "trainers = ['lob']", "policy.toml: policy trainers: 'lob' is unknown"),
        (NAMES_A_POLICY.replace('"policy.toml"', "3"), "", "[client] expected the name of a file, got `int`"),
    ],
)
def test_mistakes_about_a_policy_file_are_named(folder: Path, client: str, policy: str | None, message: str) -> None:
    if policy is not None:
        (folder / "policy.toml").write_text(policy)
    assert message in refusal(folder, client)


def test_a_shared_policy_may_bound_columns_that_a_device_lacks(folder: Path) -> None:
    (folder / "policy.toml").write_text(FULL_POLICY.replace("x = [0, 120]", "x = [0, 120], z = [0, 1]"))
    (folder / "client.toml").write_text(NAMES_A_POLICY)
    device = load(folder / "client.toml")
    assert device.config.policy.bounds == {"x": (0.0, 120.0), "z": (0.0, 1.0)}


def test_a_trainers_account_has_defaults_and_is_given_to_its_actor(folder: Path) -> None:
    assert load(folder / "trainer.toml").config.account == BudgetLimit(epsilon=4.0, delta=1e-5, period_days=365.0)
    (folder / "trainer.toml").write_text(f"{TRAINER_TEXT}[account]\nepsilon = 0.5\ndelta = 1e-6\nperiod_days = 7\n")
    device = load(folder / "trainer.toml")
    assert device.config.account == BudgetLimit(epsilon=0.5, delta=1e-6, period_days=7.0)
    request = open_round(RoundSettings(**{**PLAIN, "epsilon": 0.6}), FEDERATION)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"the federation's account: found a total of epsilon .* expected <= 0.5"):
        asyncio.run(device.run_round(request))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epsilon = 0", "account: epsilon is 0; give a finite number above 0, such as 1"),
        ("delta = 1", "account: delta is 1; give a number above 0 and below 1, such as 1e-5"),
        ("period_days = -1", "account: period_days is -1; give a number of days from 0.01 to 36600, such as 365"),
        ("epsilon_max = 1", "unknown key 'epsilon_max' (did you mean 'epsilon'?); [account] keys: epsilon, delta,"),
    ],
)
def test_mistakes_in_an_account_are_named(folder: Path, text: str, message: str) -> None:
    assert message in refusal(folder, f"{TRAINER_TEXT}[account]\n{text}\n", "trainer.toml")


@pytest.mark.parametrize(
    ("role", "section", "kind"), [("client", "policy", Policy), ("trainer", "account", BudgetLimit)]
)
def test_the_examples_of_the_help_are_valid(role: str, section: str, kind: type) -> None:
    shown = (
        {"client": client, "compute": compute, "trainer": trainer}[role]
        .EXAMPLES.partition(f"[{section}]")[2]
        .partition("\n\n")[0]
    )
    convert(f"[{section}]", tomllib.loads(shown.partition("\n")[2]), kind)


def test_two_actors_in_a_file_or_another_one_than_expected(folder: Path) -> None:
    assert "found [client] and [trainer]" in refusal(folder, CLIENT_TEXT + TRAINER_TEXT.split("[broker]")[0])
    with pytest.raises(UsageError, match=r"found \[trainer\] of the actors' sections, expected one: \[client\]"):
        load(folder / "trainer.toml", roles=("client",))
    with pytest.raises(UsageError, match=r"nowhere.toml: No such file.*expected an actor.s configuration file"):
        load(folder / "nowhere.toml")


def test_a_client_needs_its_own_certificate(folder: Path) -> None:
    certificate = enrol(AUTHORITY, FEDERATION, STRANGER.public_key, 1 << 43)
    write_certificate(folder / "client.cert", FEDERATION, certificate)
    with pytest.raises(UsageError, match="another client's"):
        load(folder / "client.toml")
    (folder / "client.cert").unlink()
    with pytest.raises(UsageError, match=r"does not exist in .*; have the client enrolled"):
        load(folder / "client.toml")


def test_a_server_must_be_in_the_federation_file(folder: Path) -> None:
    write_identity(folder / "stranger.key", "trainer", STRANGER)
    assert "names no trainer with the key of" in refusal(
        folder, TRAINER_TEXT.replace("trainer.key", "stranger.key"), "trainer.toml"
    )


def test_modules_register_statistics_of_the_users_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "my_statistics.py").write_text("LOADED = True\n")
    monkeypatch.syspath_prepend(folder)
    (folder / "trainer.toml").write_text(TRAINER_TEXT.replace("[trainer]", '[trainer]\nmodules = ["my_statistics"]'))
    load(folder / "trainer.toml")
    assert sys.modules.pop("my_statistics").LOADED
    text = TRAINER_TEXT.replace("[trainer]", '[trainer]\nmodules = ["no_such_module"]')
    assert "'no_such_module' cannot be imported" in refusal(folder, text, "trainer.toml")


@pytest.mark.parametrize(
    ("authority", "number", "is_replaced"), [(AUTHORITY, 2, True), (AUTHORITY, 4, False), (STRANGER, 1, False)]
)
def test_only_an_older_file_of_the_same_federation_is_replaced(
    folder: Path, authority: Identity, number: int, is_replaced: bool
) -> None:
    """An actor that stops knows file 3. Its owner may have put a new federation's file 1 in place meanwhile."""
    known = sign_federation(AUTHORITY, msgspec.structs.replace(FEDERATION, number=3))
    found = msgspec.structs.replace(FEDERATION, enrolment_key=authority.public_key, number=number)
    path, device = folder / "federation.toml", load(folder / "trainer.toml")
    text = sign_federation(authority, found).to_toml()
    path.write_text(text)
    device._write_file(known)
    assert path.read_text() == (known.to_toml() if is_replaced else text)


# --- data -------------------------------------------------------------------------------------------------------------


def test_a_csv_is_read_with_its_missing_values(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("\ufeffx, y\n1,2.5\n,-4e1\n\n 3 ,\n", encoding="utf-8")
    table = read_csv(path)
    assert table.columns == ("x", "y")
    np.testing.assert_array_equal(table.rows(("y", "x")), [[2.5, 1], [-40, math.nan], [math.nan, 3]])
    assert len(table) == 3


def test_a_table_refuses_mismatched_columns_and_rows() -> None:
    for columns, rows in ((["x"], [1.0]), (["x"], [[1.0, 2.0]]), (["x", "x"], [[1.0, 2.0]])):
        with pytest.raises(UsageError, match=r"rows have shape|named twice"):
            Table(columns, np.array(rows))
    assert "1" not in repr(Table(["x"], np.array([[1.0]])))


def test_a_client_may_have_no_rows(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("x,y\n")
    assert read_csv(tmp_path / "d.csv").rows(("x",)).shape == (0, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n3,4\n", "begins with numbers; expected the columns' names"),
        ("", "has no header"),
        ("x,\n1,2\n", "its last column has no name"),
        ("x,x\n1,2\n", "has one name for columns 1 and 2"),
        ('"x\n1\n', "is not a CSV in UTF-8"),
        ("x\xff\n1\n", "is not a CSV in UTF-8"),
    ],
)
def test_data_without_a_header_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "d.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError) as caught:
        read_csv(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "rows", "fields", "lines"),
    [
        ("x,y\n1,2\n3,seven\n", [[1, 2], [3, math.nan]], {"y": 1}, 0),
        ("x,y\nNA,nan\n-inf,1e400\n", [[math.nan] * 2] * 2, {"x": 2, "y": 2}, 0),
        ("x,y\n1_000,\n5,5\n", [[math.nan] * 2, [5, 5]], {"x": 1}, 0),
        ("x,y\n1\n1,2,3\n5,5\n", [[math.nan] * 2] * 2 + [[5, 5]], {}, 2),
        ('x,y\n"1"2,3\n5,5\n', [[math.nan] * 2, [5, 5]], {}, 1),
        ('x,y\n5,5\n1,"3\n', [[5, 5], [math.nan] * 2], {}, 1),
        ("x,y\n\xff,5\n", [[math.nan, 5]], {"x": 1}, 0),
        (f"x,y\n5,5\n{'7' * 200_000},5\n", [[5, 5], [math.nan] * 2], {}, 1),
    ],
)
def test_no_row_keeps_a_client_from_taking_part(
    tmp_path: Path, text: str, rows: list[list[float]], fields: dict[str, int], lines: int
) -> None:
    """An odd value in a row is missing, and logged once, by column and count, without the value."""
    path = tmp_path / "d.csv"
    path.write_bytes(text.encode("latin-1"))
    with capture_logs() as logs:
        np.testing.assert_array_equal(read_csv(path).rows(("x", "y")), rows)
    (entry,) = logs
    assert (entry["log_level"], entry["fields"], entry["lines"]) == ("warning", fields, lines)
    assert set(entry) - {"not_utf8", "expected"} == {"log_level", "event", "data", "fields", "lines"}
    assert ("expected" in entry) == (lines > 0)
    assert entry.get("not_utf8", 0) == text.count("\xff")
    assert not {"seven", "1_000", "1e400"} & set(str(entry).split("'"))


def test_a_clients_file_may_name_the_delimiter(folder: Path) -> None:
    (folder / "readings.csv").write_text("x|y\n1|2\n")
    named = CLIENT_TEXT.replace("[client]", '[client]\ndelimiter = "|"', 1)
    (folder / "client.toml").write_text(named)
    assert load(folder / "client.toml").role == "client"
    for wrong in ("commas", "7"):
        line = refusal(folder, named.replace('"|"', f'"{wrong}"'))
        assert f"client.toml: delimiter '{wrong}': expected one of comma, semicolon, tab, or a single sign" in line


def test_missing_values_are_no_reason_to_warn(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("x,y\n1,\n ,2\n")
    with capture_logs() as logs:
        read_csv(tmp_path / "d.csv")
    assert logs == []


# --- rounds -----------------------------------------------------------------------------------------------------------

PLAIN = {"statistic": "mean", "columns": ("x",), "bounds": {"x": (0, 10)}, "epsilon": 1.0, "delta": 1e-6}


def test_a_round_maps_its_bounds_to_the_unit_box() -> None:
    request = open_round(RoundSettings(**PLAIN, tolerate=2), FEDERATION)
    box = {"columns": ["x"], "centre": [5.0], "scale": [5.0], "bound": [1.0]}
    assert request.parameters.pop("count_weight") == pytest.approx(3**0.5)
    assert request.parameters == box
    assert request.computes == (FIRST.id, SECOND.id)
    assert request.round_id != open_round(RoundSettings(**PLAIN), FEDERATION).round_id


def test_a_statistic_without_bounds_takes_parameters() -> None:
    settings = {**PLAIN, "statistic": "histogram", "bounds": {}, "parameters": {"edges": [0, 1, 2]}}
    assert open_round(RoundSettings(**settings), FEDERATION).parameters == {"columns": ["x"], "edges": [0, 1, 2]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"statistic": "maen"}, "statistic 'maen' is unknown here (did you mean 'mean'?); known: "),
        ({"bounds": {}}, "public bounds are missing for: x; give column=LO:HI"),
        ({"columns": ("x", "y")}, "public bounds are missing for: y"),
        ({"bounds": {"x": (0, 1), "z": (0, 1)}}, "bounds of z: expected bounds of the columns x only"),
        ({"bounds": {"x": (1, 1)}}, "bounds of 'x': found 1:1, expected finite LO < HI"),
        ({"bounds": {"x": (0, math.inf)}}, "expected finite LO < HI"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"tolerate": -1}, "tolerate is -1; give a number from 0 to 10000000"),
        ({"colluders": 1}, "c = 1 colluders exceed T = 0; lower colluders to 0, or raise tolerate to 1"),
        ({"clients": 5, "tolerate": 4}, "N - T - 1 = 5 - 4 - 1 is below 1"),
        ({"collect_s": 0.0}, "collect_s is 0"),
        ({"computes": ("hospital-a",)}, "found 1 Compute nodes, expected at least 2"),
        ({"computes": ("hospital-a", "hospital-c")}, "hospital-c is not in the federation file"),
        ({"parameters": {"edges": [1]}}, "statistic 'mean' has no parameter 'edges'"),
        ({"fraction_bits": 3}, "fraction_bits is 3"),
    ],
)
def test_an_impossible_round_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_round(RoundSettings(**{**PLAIN, **changes}), FEDERATION)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_a_clients_file_lists_the_categories_of_its_text_columns(folder: Path) -> None:
    listed = CLIENT_TEXT.replace("[client]", '[client]\ncategories = { smoker = ["no", "yes"] }', 1)
    (folder / "client.toml").write_text(listed)
    (folder / "readings.csv").write_text("x,smoker\n1,yes\n")
    files = read_config(folder / "client.toml").files
    assert isinstance(files, ClientFiles)
    assert files.data is not None
    table = read_csv(files.data, files.categories)
    assert table.rows(("smoker=yes", "smoker", "x")).tolist() == [[1, 1, 1]]
    for wrong in ("5", '{ smoker = "no" }', "{ smoker = [1, 2] }", '{ smoker = ["no"] }', '{ y = ["a", "b"] }'):
        line = refusal(folder, listed.replace('{ smoker = ["no", "yes"] }', wrong))
        assert "categories" in line
