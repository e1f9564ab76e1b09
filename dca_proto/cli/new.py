"""`dca new` makes the folder of a study: a statistic, a job, programs, a test. Its files are in `dca_proto/study`."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shutil
import tempfile
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from dca_proto.cli.output import tell
from dca_proto.errors import StorageError, UsageError

EXAMPLES = """Examples:

  dca new warm_days                    a folder warm_days that runs, and is yours to change
  cd warm_days && python learn.py --trial 200
"""
NAME = "my_study"
"""The study's name in the templates; `new` replaces it."""
NAME_CHARS_MAX = 40
DEVICES = re.compile("con|prn|aux|nul|(com|lpt)[0-9]")
"""What Windows takes for a device, not for a folder."""
FILES = {
    "README.md": "README.md",
    "package.py": f"{NAME}/__init__.py",
    "statistic.py": f"{NAME}/statistic.py",
    "study.py": f"{NAME}/study.py",
    "study.toml": "study.toml",
    "client.py": "client.py",
    "learn.py": "learn.py",
    "test_study.py": "tests/test_study.py",
    "pyproject.toml": "pyproject.toml",
}
"""Each template, and where its text goes."""


def new(
    name: Annotated[str, typer.Argument(help="Of the folder and of the package in it: a-z, 0-9 and _.")],
) -> None:
    """Make a folder with a study of your own that runs: what clients compute, a job, a client, a test."""
    folder = Path(require_name(name))
    write_study(folder)
    tell(f"study       {folder}: README.md says what to change")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        tell(f"            {path}")
    tell(f"next        cd {folder} && python learn.py --trial 200")


def require_name(name: str) -> str:
    """Return a name that a package can have. Raises `UsageError` if it cannot, or if it hides a module that exists."""
    if not re.fullmatch("[a-z]([a-z0-9_]*[a-z0-9])?", name) or len(name) > NAME_CHARS_MAX or keyword.iskeyword(name):
        raise UsageError(
            f"name {name[: NAME_CHARS_MAX + 1]!r}: expected a-z, 0-9 and _, a letter first and no _ last, at most "
            f"{NAME_CHARS_MAX}, and no word of Python"
        )
    if DEVICES.fullmatch(name):
        raise UsageError(f"name {name!r}: Windows takes it for a device; choose another")
    if name in {"learn", "client", "tests"} or importlib.util.find_spec(name) is not None:
        raise UsageError(f"name {name!r}: a Python module has this name; choose another")
    return name


def write_study(folder: Path) -> None:
    """Write all files, or none. Raises `StorageError` if the folder exists or cannot be written."""
    if folder.exists() or folder.is_symlink():
        raise StorageError(f"folder {folder} exists; choose another name, or move it away")
    try:
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.absolute().parent) as made:
            for template, place in FILES.items():
                path = Path(made) / "study" / place.replace(NAME, folder.name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(filled(template, folder.name), encoding="utf-8")
            shutil.move(Path(made) / "study", folder)
    except OSError as error:
        raise StorageError(f"folder {folder} cannot be written: {error.strerror or error}") from None


def filled(template: str, name: str) -> str:
    """Return a template's text with the study's name. A distribution's name has dashes."""
    source = resources.files("dca_proto") / "study" / f"{template}.template"
    text = source.read_text(encoding="utf-8")
    return text.replace(NAME, name).replace(NAME.replace("_", "-"), name.replace("_", "-"))
