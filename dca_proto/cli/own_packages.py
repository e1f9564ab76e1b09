"""Whether the packages `inference` and `emulator` are this project's: others use these names too.

Such a package comes first where its folder stands earlier on the path: in site-packages before an editable install, in
the current folder under ``python -m``, or in PYTHONPATH. A wheel installed later replaces files in the same folder. So
both count here, the place beside `dca_proto` and a line of the package's own.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import dca_proto

_NAMES = ("inference", "emulator")
_OWN_LINE = 'PROJECT = "dca-proto"'


def foreign_package() -> str | None:
    """What is wrong and what to do, in one line, where another project's package would be imported; otherwise None.

    Imports neither package.
    """
    beside = Path(dca_proto.__file__).resolve().parent.parent
    for name in _NAMES:
        spec = find_spec(name)
        expected = beside / name / "__init__.py"
        found = Path(spec.origin).resolve() if spec is not None and spec.origin is not None else None
        if found != expected or _OWN_LINE not in found.read_text(encoding="utf-8"):
            place = "no such package" if found is None else f"another project's, {found}"
            return (
                f"cannot use package {name!r}: found {place}, expected this project's, {expected}; install this "
                "project into an environment of its own (python -m venv), and start it where no other folder or file "
                f"is called {name}"
            )
    return None
