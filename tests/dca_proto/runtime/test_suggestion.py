"""A policy that an invitation suggests: its owner sees it, decides, and nothing is loosened without their word."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest
from joined_devices import invite, play

from dca_proto.cli import main
from dca_proto.cli.join import Choice
from dca_proto.errors import InputError
from dca_proto.protocol.policy import Policy
from dca_proto.runtime.bundle import link_of, parse_link, read_bundle, write_bundle
from dca_proto.runtime.config import ClientFiles, read_config
from dca_proto.runtime.joining import Joined, join, open_link
from dca_proto.runtime.keyfile import read_federation
from dca_proto.runtime.registrar import RegistrarServer
from dca_proto.runtime.suggestion import (
    ANY_IS_STRICTER,
    LARGER_IS_LOOSER,
    SMALLER_IS_LOOSER,
    lines_of,
    read_suggestion,
    text_of,
)
from dca_proto.wording import parse_toml, toml_value

SMALL = 'clients_min = 4  # of five\nhonest_min = 3\nbounds = { "t in" = [0, 50.5] }\n'


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(SMALL)
    return path


def join_command(*arguments: object) -> list[str]:
    return ["join", *map(str, arguments), "--no-start"]


def test_each_key_of_a_policy_is_compared_with_its_default(host: Path) -> None:
    tables = [LARGER_IS_LOOSER, SMALLER_IS_LOOSER, ANY_IS_STRICTER]
    assert sorted(key for table in tables for key in table) == sorted(Policy.__struct_fields__)
    federation, usual = read_federation(host / "federation.toml"), Policy()
    for key in Policy.__struct_fields__:
        default = getattr(usual, key)
        (line,) = lines_of(f"{key} = {toml_value(default)}\n", federation)
        assert line.difference == "as by default", key
        if isinstance(default, bool):
            other: object = not default
        elif key in ANY_IS_STRICTER:
            other = {"bounds": {"x": [0, 1]}, "statistics": ["mean"]}.get(key, ["berlin"])
            other = [federation.trainers[0].name] if key == "trainers" else other
        elif key in LARGER_IS_LOOSER:
            other = default + 1 if default < 1e-2 and key != "delta_max" else default * 1.5
            other = int(other) if isinstance(default, int) else other
        else:
            other = type(default)(default * 0.6) if default else 0.5 if isinstance(default, float) else 3
        if key == "computes_min":
            other = 3
        (line,) = lines_of(f"{key} = {toml_value(other)}\n", federation)
        expected = "stricter" if key in (*ANY_IS_STRICTER, "sums_only", "verified", "computes_min") else "LOOSER"
        expected = "stricter" if key in ("colluders_min", "colluders_part_min") else expected
        assert line.difference.startswith(expected), (key, line)


def test_a_value_of_any_kind_is_toml() -> None:
    value = {"a": 1, "b c": [0.5, 1e-6], "d": 'it\'s "so"', "e": True, "f": {}, "g": []}
    assert parse_toml(f"x = {toml_value(value)}")["x"] == value


def test_an_invitation_suggests_limits_and_nothing_is_loosened_without_the_owners_word(
    host: Path, policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bundle,) = invite(host, "ward-7", suggest_policy=policy)
    assert (
        "policy      each suggests these limits; the device's owner accepts or refuses them" in capsys.readouterr().out
    )
    folder = tmp_path / "ward-7"
    assert main(join_command(bundle, "--folder", folder)) == 2  # no registrar answers, and none is asked
    shown = capsys.readouterr()
    assert "clients_min = 4                  LOOSER than the default, 20" in shown.out
    assert 'bounds = { "t in" = [0, 50.5] }  stricter than the default, any' in shown.out
    assert "--accept-policy, --refuse-policy (the default limits) or --policy FILE" in shown.err
    assert not folder.exists()


def test_only_an_owner_who_accepts_gets_what_is_suggested(host: Path, policy: Path, tmp_path: Path) -> None:
    (bundle,) = invite(host, "ward-7", suggest_policy=policy)
    entrance = read_bundle(bundle).entrance
    accepted = text_of(lines_of(entrance.policy, read_federation(host / "federation.toml")))
    choices = {"accepts": (None, True), "refuses": (None, False), "own": (policy, None)}
    limits = {name: Choice(*choice).limits(entrance, tmp_path / "new") for name, choice in choices.items()}
    assert limits == {"accepts": accepted, "refuses": "", "own": ""}
    joined = tmp_path / "joined"
    joined.mkdir()
    (joined / "client.toml").touch()
    assert Choice(None, None).limits(entrance, joined) == "", "a device that has joined keeps its limits"


JOIN = """
import sys
import dca_proto.runtime.joining
from dca_proto.cli import main
from dca_proto.cli.join import Choice

async def admitted(*_):
    "A broker that lets everybody in."

dca_proto.runtime.joining._admitted = admitted
sys.exit(main(sys.argv[1:]))
"""


def run_join(host: Path, *arguments: object) -> str:
    """Type `dca join` while the registrar serves, and return what it prints."""

    async def scene(running: RegistrarServer) -> str:
        pipe = asyncio.subprocess.PIPE
        command = [sys.executable, "-c", JOIN, *join_command(*arguments)]
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
        out, err = await process.communicate()
        assert process.returncode == 0, err
        return out.decode()

    return play(host, scene)  # type: ignore[no-any-return]


@pytest.mark.long
def test_what_the_owner_chose_is_printed_and_stands_in_the_devices_file(
    host: Path, policy: Path, tmp_path: Path
) -> None:
    bundles = invite(host, "accepts", "refuses", "own", suggest_policy=policy)
    accepted = run_join(host, bundles[0], "--folder", tmp_path / "accepts", "--accept-policy")
    assert "policy      as the invitation suggests; change it in" in accepted
    assert "honest_min = 3                   LOOSER than the default, 10" in accepted
    config = read_config(tmp_path / "accepts/client.toml")
    assert (tmp_path / "accepts/policy.toml").read_text().startswith("# suggested by the invitation, and accepted")
    assert (config.policy.clients_min, config.policy.honest_min) == (4, 3)
    assert config.policy.bounds == {"t in": (0.0, 50.5)}
    again = run_join(host, bundles[0], "--folder", tmp_path / "accepts", "--accept-policy")
    assert "policy      as before" in again
    refused = run_join(host, bundles[1], "--folder", tmp_path / "refuses", "--refuse-policy")
    assert "the default limits; what the invitation suggests was refused" in refused
    assert read_config(tmp_path / "refuses/client.toml").policy == Policy()
    own = tmp_path / "own.toml"
    own.write_text("clients_min = 5\nhonest_min = 4\n")
    assert f"policy      {own}, which" in run_join(host, bundles[2], "--folder", tmp_path / "own", "--policy", own)
    files = read_config(tmp_path / "own/client.toml").files
    assert isinstance(files, ClientFiles)
    assert files.policy == own
    assert read_config(tmp_path / "own/client.toml").policy.clients_min == 5


@pytest.mark.long
def test_a_device_that_sleeps_states_it_when_it_joins(
    host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bundle,) = invite(host, "gateway-7")
    place = ("--folder", tmp_path / "gateway")
    run_join(host, bundle, *place, "--sleep-max", 2400)
    files = read_config(tmp_path / "gateway/client.toml").files
    assert isinstance(files, ClientFiles)
    assert files.sleep_max_s == 2400
    assert "sleep       as before" in run_join(host, bundle, *place, "--sleep-max", 60)
    assert main(["join", str(bundle), "--renew", "--sleep-max", "60"]) == 2
    assert "a renewal keeps the device's file: set sleep_max_s there" in capsys.readouterr().err


def test_a_registrars_file_names_the_policy_of_all_invitations_and_a_link_carries_it(
    host: Path, policy: Path, tmp_path: Path
) -> None:
    with (host / "registrar.toml").open("a") as file:
        file.write(f"policy = {toml_value(str(policy))}\n")
    (bundle,) = invite(host, "ward-7")
    entrance = read_bundle(bundle).entrance
    assert entrance.policy == 'clients_min = 4\nhonest_min = 3\nbounds = { "t in" = [0, 50.5] }\n'

    async def scene(running: RegistrarServer) -> Joined:
        link = parse_link(link_of(read_bundle(bundle)))
        assert await open_link(link) == entrance
        looser = msgspec.structs.replace(entrance, policy="clients_min = 2\n")
        known, running._book.entrance = running._book.entrance, lambda digest: looser  # type: ignore[method-assign]
        with pytest.raises(InputError, match="is not the registrar of this link"):
            await open_link(link)
        running._book.entrance = known  # type: ignore[method-assign]
        limits = text_of(lines_of(entrance.policy, read_federation(host / "federation.toml")))
        return await join(read_bundle(bundle), tmp_path / "a", None, None, limits)

    assert read_config(play(host, scene).config).policy.honest_min == 3


def test_an_accepted_policy_replaces_no_file_of_the_owners(host: Path, policy: Path, tmp_path: Path) -> None:
    """A folder may have a policy that other devices share; a join that was killed left the accepted one."""
    (bundle,) = invite(host, "ward-7", suggest_policy=policy)
    folder = tmp_path / "ward-7"
    folder.mkdir()
    own = folder / "policy.toml"
    own.write_text("clients_min = 50\n")
    accepted = text_of(lines_of(read_bundle(bundle).entrance.policy, read_federation(host / "federation.toml")))

    async def scene(running: RegistrarServer) -> Joined:
        with pytest.raises(InputError, match=r"policy.toml exists already and is not replaced; give --policy"):
            await join(read_bundle(bundle), folder, None, None, accepted)
        assert own.read_text() == "clients_min = 50\n"
        assert not (folder / "client.key").exists(), "nothing is enrolled"
        own.write_text(accepted)
        return await join(read_bundle(bundle), folder, None, None, accepted)

    assert read_config(play(host, scene).config).policy.honest_min == 3


def test_a_renewal_keeps_the_policy(host: Path, policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bundle,) = invite(host, "ward-7", suggest_policy=policy)
    assert main(["join", str(bundle), "--renew", "--accept-policy"]) == 2
    assert "a renewal keeps the policy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[policy]\nclients_min = 4\n", "found the section"),
        ("client_min = 4\n", "did you mean 'clients_min'"),
        ("clients_min = 0\n", "give at least 1"),
        ('trusted_computes = ["prague"]\n', "'prague' is unknown"),
        ("clients_min = \n", "not TOML"),
    ],
)
def test_a_suggestion_that_is_no_policy_is_refused_when_it_is_made_and_when_it_is_read(
    text: str, match: str, host: Path, tmp_path: Path
) -> None:
    path = tmp_path / "odd.toml"
    path.write_text(text)
    federation = read_federation(host / "federation.toml")
    with pytest.raises(InputError, match=match):
        read_suggestion(path, federation)
    (bundle,) = invite(host, "ward-7")
    whole = read_bundle(bundle)
    forged = msgspec.structs.replace(whole, entrance=msgspec.structs.replace(whole.entrance, policy=text))
    write_bundle(tmp_path / "forged.bundle", forged)
    with pytest.raises(InputError, match=match):
        read_bundle(tmp_path / "forged.bundle")


def test_a_suggestion_that_is_not_there_cannot_be_accepted(
    host: Path, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bundle,) = invite(host, "ward-7")
    assert main(join_command(bundle, "--accept-policy")) == 2
    assert "the invitation suggests no policy" in capsys.readouterr().err
    assert main(join_command(bundle, "--accept-policy", "--policy", policy)) == 2
    assert "expected one of them" in capsys.readouterr().err
