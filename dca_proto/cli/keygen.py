"""`dca keygen` makes an identity."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dca_proto.errors import StorageError
from dca_proto.runtime.keyfile import ROLES, new_identity, write_identity

EXAMPLES = """Examples:

  dca keygen client.key                            run it on the device: the secret never leaves it
  dca keygen hospital-a.key --role compute         its public key goes into the federation file
  dca keygen authority.key --role authority        signs clients' certificates
"""


def keygen(
    file: Annotated[Path, typer.Argument(help="The new key file, readable by its owner only.")],
    role: Annotated[str, typer.Option(help=f"{', '.join(ROLES[:-1])} or {ROLES[-1]}.")] = "client",
) -> None:
    """Create an identity in a file that only its owner can read, and print its public key and id."""
    if not file.absolute().parent.is_dir():
        raise StorageError(f"folder {file.parent} does not exist; make it first")
    identity = new_identity()
    write_identity(file, role, identity)
    print(f"role        {role}")
    print(f"file        {file}")
    print(f"public key  {identity.public_key.hex()}")
    print(f"id          {identity.id.hex()}")
    if role == "client":
        print("next        have the public key enrolled: dca federation enrol")
