"""The page on versions and upgrades states the versions that the program has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dca_proto import __version__
from dca_proto.jobs import journal, series
from dca_proto.protocol.params import PROTOCOL_VERSION
from dca_proto.runtime import backup, book, store

PAGE = (Path(__file__).parents[1] / "docs" / "reference" / "compatibility.md").read_text("utf-8")
VERSIONS = {
    "messages (the *protocol*)": PROTOCOL_VERSION,
    "an actor's store": store._APPLICATION_ID & 0xFF,
    "a backup of a store": backup._FORMAT,
    "a registrar's book": book._FORMAT,
    "a job's journal": journal._FORMAT,
    "results of a schedule": series._FORMAT,
}


@pytest.mark.parametrize("what", VERSIONS)
def test_the_page_has_the_version_of_each_format(what: str) -> None:
    (found,) = re.findall(rf"(?m)^\| {re.escape(what)} \| (\d+) \|", PAGE)
    assert int(found) == VERSIONS[what]


def test_no_format_is_missing_on_the_page() -> None:
    table = PAGE.split("| what | version |")[1].split("\n\n")[0]
    assert len(re.findall(r"(?m)^\| .* \| \d+ \|", table)) == len(VERSIONS)
    assert f"\ndca {__version__}, protocol {PROTOCOL_VERSION}\n" in PAGE
