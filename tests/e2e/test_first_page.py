"""The pictures of the documents, and the figures by which README and `choose.md` explain ε."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from scipy.stats import norm

from dca_proto.privacy.accounting import epsilon_of, mu_of
from draw_result import STEPS, Bar, picture
from emulator.coalition.bounds import gaussian_trade_off
from inference.problem import Array

ROOT = Path(__file__).parents[2]
README, CHOOSE = ROOT / "README.md", ROOT / "docs/concepts/choose.md"
DRAWN = ("docs/protocol.svg", "docs/result.svg")
DELTA, SUSPICION, SVG = 1e-5, 0.01, "{http://www.w3.org/2000/svg}"
IN_20, IN_1000 = 0.95, 0.999


def suspicion_after(mu: float, quantile: float) -> float:
    """Return the quantile, over the noise, of a true suspicion of 1 % after one release at μ.

    The log likelihood ratio of a Gaussian release is N(μ²/2, μ²) if the suspicion is true.
    """
    odds = SUSPICION / (1 - SUSPICION) * np.exp(mu**2 / 2 + mu * norm.ppf(quantile))
    return float(odds / (1 + odds))


def right(mu: float) -> float:
    """Return how often the best guess between two equally likely worlds is right, from the trade-off curve."""
    positives: Array = np.linspace(0, 1, 200_001)
    return float(1 - np.min(positives + gaussian_trade_off(positives, mu)) / 2)


def figures() -> dict[float, list[float]]:
    text = CHOOSE.read_text("utf-8").split("<!-- what epsilon means -->")[1].split("<!-- end of")[0]
    rows = [[cell.strip(" %") for cell in line.strip("|").split("|")] for line in text.strip().splitlines()[2:]]
    return {float(row[0]): [float(cell) for cell in row[1:]] for row in rows}


def test_the_table_of_epsilon_is_that_of_the_gaussian_trade_off() -> None:
    assert list(figures()) == [0.5, 1, 2, 4, 8]
    for epsilon, (mu, typical, unlucky, unluckiest, share) in figures().items():
        exact = mu_of(epsilon, DELTA)
        assert mu == pytest.approx(exact, rel=3e-3)
        known = [100 * suspicion_after(exact, quantile) for quantile in (0.5, IN_20, IN_1000)]
        assert [typical, unlucky, unluckiest] == pytest.approx(known, rel=4e-3)
        assert share == pytest.approx(100 * right(exact), abs=0.06)


def test_the_sentences_about_epsilon_have_the_tables_figures() -> None:
    text, readme = (" ".join(page.read_text("utf-8").split()) for page in (CHOOSE, README))
    _, typical, unlucky, _, share = figures()[2.0]
    for page in (text, readme):
        assert f"typically becomes {typical} %; for one" in page or f"typically becomes {typical} %. For one" in page
        assert f"rises above {unlucky} %" in page
        assert f"right in {share:.0f} of 100 cases" in page
    mu = mu_of(2, DELTA)
    beyond = norm.sf((2 - mu**2 / 2) / mu)  # the odds rise by more than e^ε
    assert f"with a probability of {beyond:.0e}".replace("e-0", "e-") in text
    sums = [epsilon_of(mu * np.sqrt(count), DELTA) for count in (2, 4, 12)]
    assert sums == pytest.approx([2.96, 4.4, 8.5], abs=0.09)
    assert all(a <= b for a, b in zip(sums, [2.96, 4.4, 8.5], strict=False))
    assert f"right in {100 * np.exp(2) / (1 + np.exp(2)):.1f} %" in text  # randomised response


@pytest.mark.parametrize("name", DRAWN)
def test_the_first_pages_pictures_are_drawn_for_light_and_dark(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    root = ElementTree.fromstring(text)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    assert root.find(f"{SVG}title") is not None
    light, dark = text.split("@media (prefers-color-scheme: dark)")
    assert set(re.findall(r"(--[\w-]+):", light)) == set(re.findall(r"(--[\w-]+):", dark.split("}")[0]))
    assert "<script" not in text
    assert not re.search(r"(?:href|url)\W+https?:", text)
    assert f"]({name})" in README.read_text("utf-8")
    for one in root.iter(f"{SVG}text"):
        assert 0 < float(one.attrib["x"]) < width
        assert 0 < float(one.attrib["y"]) < height


def test_the_result_is_drawn_from_intervals() -> None:
    made = {name: [Bar("ε = 2 & more", "private", 3.0, -12.0, 41.0)] for name in STEPS}
    root = ElementTree.fromstring(picture(made))
    words = [one.text or "" for one in root.iter(f"{SVG}text")]
    assert words.count("ε = 2 & more") == len(STEPS)
    assert {"-20", "0", "40"} <= set(words)
    assert len(list(root.iter(f"{SVG}circle"))) == len(STEPS)


def test_every_picture_of_the_documents_exists_and_has_a_text() -> None:
    pages = [README, *(ROOT / "docs").rglob("*.md")]
    found = [(page, *one) for page in pages for one in re.findall(r"!\[([^]]*)\]\(([^)]+)\)", page.read_text("utf-8"))]
    assert len(found) >= 3
    for page, words, path in found:
        assert len(words.split()) >= 4, page
        assert (page.parent / path).is_file(), (page, path)
