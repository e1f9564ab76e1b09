"""The table of attacks names tests that exist, and leaves out no attack."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
RULES = 13


def test_every_attack_has_a_test_that_exists_or_a_reason() -> None:
    rows = [line for line in (HERE / "ATTACKS.md").read_text().splitlines() if re.match(r"\| (G?\d+) ", line)]
    numbers = [re.match(r"\| (G?\d+) ", row)[1] for row in rows]
    plain = [int(number) for number in numbers if number.isdecimal()]
    sources = "".join(path.read_text() for path in HERE.parents[1].rglob("test_*.py"))
    tested = max(int(number) for number in re.findall(r"def test_attack_(\d+)_", sources))
    assert plain == list(range(1, tested + 1))
    assert numbers[len(plain) :] == [f"G{number}" for number in range(1, RULES + 1)]
    known = set(re.findall(r"def (test_\w+)\(", sources)) | set(re.findall(r"^(Test\w+) = ", sources, re.MULTILINE))
    for row in rows:
        named = re.findall(r"`(\w+)`", row)
        assert named, row
        assert set(named) <= known, row
