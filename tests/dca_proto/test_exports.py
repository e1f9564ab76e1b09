"""What a program imports from `dca_proto`: each name is there, loads late, and has one home."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dca_proto


@pytest.mark.parametrize("name", dca_proto.__all__)
def test_each_name_is_there(name: str) -> None:
    exported = getattr(dca_proto, name)
    assert name in ("__version__", "device") or exported.__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'dca_proto' has no attribute 'Clients'"):
        dca_proto.Clients  # noqa: B018


def test_the_package_itself_loads_nothing() -> None:
    probe = "import sys, dca_proto; sys.exit(any(name.startswith('dca_proto.') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0
