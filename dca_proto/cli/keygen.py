"""`dca keygen` makes an identity."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dca_proto.cli.options import Json, completing
from dca_proto.cli.output import result_console, say
from dca_proto.errors import StorageError
from dca_proto.results.figure import about
from dca_proto.runtime.files import write_json
from dca_proto.runtime.keyfile import ROLES, new_identity, write_identity

EXAMPLES = """Examples:

  dca keygen client.key                            run it on the device: the secret never leaves it
  dca keygen hospital-a.key --role compute         its public key goes into the federation file
  dca keygen authority.key --role authority        signs clients' certificates
  dca keygen client.key --json - | jq -r .public_key
"""


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """A new key file. Public key and id are in hexadecimal."""

    role: Annotated[str, about("Whose key it is.")]
    file: Annotated[str, about("Its path.")]
    public_key: Annotated[str, about("In hexadecimal.")]
    id: Annotated[str, about("In hexadecimal.")]


OUTPUT = NewKey


def keygen(
    file: Annotated[Path, typer.Argument(help="The new key file, readable by its owner only.")],
    role: Annotated[
        str,
        typer.Option(help=f"{', '.join(ROLES[:-1])} or {ROLES[-1]}.", autocompletion=completing(ROLES)),
    ] = "client",
    json_to: Json = None,
) -> None:
    """Create an identity in a file that only its owner can read, and print its public key and id."""
    if not file.absolute().parent.is_dir():
        raise StorageError(f"folder {file.parent} does not exist; make it first")
    console, identity = result_console(json_to), new_identity()
    write_identity(file, role, identity)
    made = NewKey(role=role, file=str(file), public_key=identity.public_key.hex(), id=identity.id.hex())
    write_json(made, json_to)
    for name, value in msgspec.structs.asdict(made).items():
        say(console, name.replace("_", " "), value)
    if role == "client":
        say(console, "next", "have the public key enrolled: dca federation enrol")
