"""What can be wrong with a page in a window: cut, overlapping, too small or too pale; measured in Chromium."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Chromium, find_chromium
from patience import PATIENCE_S

FONT_PX_MIN = 11
CONTRAST_MIN = 4.5
"""Of text on its background, WCAG 2.2 AA."""

MEASURE = """(width => {
  const shown = [...document.querySelectorAll('svg text')].filter(one => one.textContent && !one.closest('details')
                                                                        && one.getClientRects().length);
  const boxes = shown.map(one => one.getBoundingClientRect());
  const overlap = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
                         && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  const overlaps = [];
  shown.forEach((one, i) => shown.forEach((other, j) => {
    if (i < j && overlap(boxes[i], boxes[j])) overlaps.push(one.textContent + ' / ' + other.textContent);
  }));
  const beyond = [...document.querySelectorAll('main *')].filter(one => !one.closest('.scroll, details')
    && (one.getBoundingClientRect().right > width + 1 || one.getBoundingClientRect().left < -1));
  const sizes = [...document.querySelectorAll('body *')].map(one => parseFloat(getComputedStyle(one).fontSize));
  return {
    width: document.documentElement.scrollWidth, window: innerWidth, text: document.body.innerText,
    overlaps, beyond: beyond.map(one => one.outerHTML.slice(0, 120)), smallest: Math.min(...sizes),
    active: document.querySelectorAll('script,img,iframe,object,embed,link,form').length,
  };
})"""

PALE = """(least => {
  const numbers = text => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const luminance = rgb => rgb.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const paper = one => {
    for (; one; one = one.parentElement) {
      const found = numbers(getComputedStyle(one).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const texts = [...document.querySelectorAll('body *')].filter(one => one.getClientRects().length
    && [...one.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()));
  return texts.filter(one => {
    const style = getComputedStyle(one);
    const ink = numbers(one instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [luminance(ink), luminance(paper(one))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < least;
  }).map(one => one.outerHTML.slice(0, 120));
})"""


@contextlib.contextmanager
def opened(profile: Path) -> Iterator[Chromium]:
    """Chromium. Skips, visibly, where Debian's is missing; fails where it is required."""
    program = find_chromium()
    if program is None:
        missing = pytest.fail if os.environ.get("REQUIRE_CHROMIUM") == "1" else pytest.skip
        missing("chromium is not installed (Debian: apt install chromium)")
    with Chromium(program, profile) as browser:
        yield browser


def measured(chromium: Chromium, width: int) -> dict[str, Any]:
    seen: dict[str, Any] = chromium.evaluate(f"{MEASURE}({width})")
    return seen


def faults(seen: dict[str, Any], width: int) -> list[str]:
    """What is wrong with how a page lies in a window; a phone zooms out where a page is wider than its screen."""
    is_wide = seen["window"] != width or seen["width"] > width
    wide = [f"the page is {seen['width']} wide in a window of {width}"] * is_wide
    small = [f"text of {seen['smallest']} px"] * (seen["smallest"] < FONT_PX_MIN)
    return [*wide, *small, *seen["overlaps"], *seen["beyond"]]


def pale(chromium: Chromium) -> list[str]:
    """Elements whose text has too little contrast."""
    found: list[str] = chromium.evaluate(f"{PALE}({CONTRAST_MIN})")
    return found


def wait_for(chromium: Chromium, condition: str) -> None:
    """Wait until a JavaScript condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not chromium.evaluate(f"Boolean({condition})"):
        assert time.monotonic() < deadline, f"{condition}: {chromium.evaluate('document.body.innerText')[:2000]}"
        time.sleep(0.02)  # between looks; nothing is timed
