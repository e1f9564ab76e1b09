"""A member that was removed comes back under its old name, with a new key: what is there already stands in no way."""

from __future__ import annotations

from pathlib import Path

import pytest
from joined_devices import clients_of, invite, next_file, play

from dca_proto.cli import main
from dca_proto.errors import InputError
from dca_proto.protocol.federation import Member
from dca_proto.runtime.bundle import read_bundle
from dca_proto.runtime.joining import join
from dca_proto.runtime.keyfile import new_identity, read_federation
from dca_proto.runtime.registrar import RegistrarServer


def test_a_revoked_device_is_invited_again_under_its_name_and_told_what_to_do_with_its_folder(
    host: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before: cancel first, then another folder for the bundle, then `taken` without a word about the folder."""
    (bundle,) = invite(host, "ward-7")
    folder = tmp_path / "ward-7"

    async def scene(running: RegistrarServer) -> None:
        gone = await join(read_bundle(bundle), folder, None)
        again = [
            "federation",
            "invite",
            "ward-7",
            "--registrar",
            str(host / "registrar.toml"),
            "--output",
            str(host / "b"),
        ]
        assert main(again) == 2
        assert "revoke the client first" in capsys.readouterr().err
        next_file(host, revoked=(gone.id,))
        running.refresh()
        spent = read_bundle(bundle).code
        assert main(again) == 0
        assert read_bundle(bundle).code != spent, "the file of an invitation that is over is replaced"
        with pytest.raises(InputError, match=r"refuses \(revoked\).*move .*ward-7 away .*, and repeat the command"):
            await join(read_bundle(bundle), folder, None)
        folder.rename(tmp_path / "away")
        back = await join(read_bundle(bundle), folder, None)
        assert (back.name, back.id != gone.id) == ("ward-7", True)
        assert clients_of(host) == {back.id.hex()}

    play(host, scene)


def test_a_bundle_that_may_still_be_used_is_not_replaced(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bundle,) = invite(host, "ward-7")
    call = ["federation", "invite", "ward-7", "--registrar", str(host / "registrar.toml")]
    assert main([*call, "--cancel"]) == 0
    other = invite(host, "ward-8")[0]
    other.replace(bundle)
    assert main([*call, "--output", str(host / "b")]) == 8
    assert "exists already and is not replaced" in capsys.readouterr().err


def test_the_key_of_another_invitation_is_told_to_move_its_folder_away(host: Path, tmp_path: Path) -> None:
    first, second = invite(host, "ward-7", "ward-8")

    async def scene(running: RegistrarServer) -> None:
        await join(read_bundle(first), tmp_path / "a", None)
        with pytest.raises(InputError, match=r"refuses \(taken\).*move .*a away"):
            await join(read_bundle(second), tmp_path / "a", None)

    play(host, scene)


def test_a_node_that_comes_back_under_its_name_gets_new_files_and_a_late_one_the_newest_federation_file(
    host: Path,
) -> None:
    first, second = new_identity(), new_identity()

    async def scene(running: RegistrarServer) -> None:
        kept = running.federation.computes
        folder = host / "new-members/lyon"

        def adopt(**changes: object) -> str:
            next_file(host, **changes)
            running.refresh()
            return (folder / "compute.password").read_text()

        old = adopt(computes=(*kept, Member("lyon", first.public_key)))
        assert adopt(colluding=1) == old, "the same member"
        assert read_federation(folder / "federation.toml").number == 3
        assert adopt(computes=kept, revoked=(first.id,)) == old
        (folder / "compute.toml").write_text("# of the one before")
        assert adopt(computes=(*kept, Member("lyon", second.public_key))) != old
        assert read_federation(folder / "federation.toml").number == 5
        assert (folder / "compute.toml").read_text().startswith("[compute]")

    play(host, scene)
