#!/usr/bin/env python
"""Draws the README's picture of a result, docs/result.svg: the first example's coefficients at three budgets.

    scripts/draw_result.py                    runs the job and writes the picture
    scripts/draw_result.py --output x.svg     writes it elsewhere

The job is that of `./scripts/run` with 343 people, without messages: the ideal functionality adds exact noise from the
operating system, so each call draws other intervals. The first draw is used. The picture follows the reader's light or
dark theme, and has its own background, so that it can be read where it does not.
"""

from __future__ import annotations

import argparse
import sys
from html import escape
from math import ceil, floor
from pathlib import Path
from typing import NamedTuple

from dca_proto.jobs.job import JobTerms
from dca_proto.privacy.rounding import at_least
from emulator.ideal import IdealSwarm
from inference.datasets import diabetes
from inference.models.linear.baselines import nonprivate_regression
from inference.models.linear.job import regression_with_projection
from inference.problem import assign, hold_out
from inference.rounds import run

PICTURE = Path(__file__).parents[1] / "docs" / "result.svg"
EPSILONS, DELTA, SEED = (4.0, 2.0, 1.0), 1e-5, 1
TICKS_MAX = 9
STEPS = {"bmi": (5, "5 kg/m² more body mass index"), "bp": (15, "15 mmHg more blood pressure"),
         "s5": (0.5, "0.5 more log triglycerides")}  # fmt: skip
"""A step of each feature, about its standard deviation, and its words."""
WIDTH, LEFT, RIGHT, TOP, ROW, GAP = 680, 250, 650, 92, 24, 40
STYLE = """
    svg { --paper: #ffffff; --ink: #1f2328; --faint: #57606a; --line: #d0d7de; --private: #0072b2;
          font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
    @media (prefers-color-scheme: dark) {
      svg { --paper: #0d1117; --ink: #e6edf3; --faint: #9da7b3; --line: #3d444d; --private: #6cb6ff; }
    }
    text { fill: var(--ink); font-size: 15px; }
    .head { font-size: 17px; font-weight: 600; }
    .small { font-size: 14px; fill: var(--faint); }
    .private { stroke: var(--private); stroke-width: 3; stroke-linecap: round; }
    .plain { stroke: var(--faint); stroke-width: 3; stroke-dasharray: 2 6; stroke-linecap: round; }
    circle.private { fill: var(--private); } circle.plain { fill: var(--paper); stroke-dasharray: none; }
    .grid { stroke: var(--line); } .zero { stroke: var(--faint); }"""


class Bar(NamedTuple):
    """An interval with its mean, in points of progression for a step of the feature."""

    words: str
    kind: str  # private or plain
    mean: float
    low: float
    high: float


def bars() -> dict[str, list[Bar]]:
    """Fit without privacy and at each budget; return the bars of each feature."""
    train, _ = hold_out(diabetes(), SEED)
    clients, found = len(train.y), [("without privacy", "plain", nonprivate_regression(train))]
    computes = tuple(bytes([index]) * 16 for index in range(3))
    for epsilon in EPSILONS:
        terms = JobTerms(epsilon=epsilon, delta=DELTA, clients=clients, tolerate=clients // 10, computes=computes)
        swarm = IdealSwarm(assign(train.rows, clients), train.schema.columns, terms)
        found.append((f"ε = {at_least(epsilon)}", "private", run(regression_with_projection(train.schema), swarm)))
    made: dict[str, list[Bar]] = {name: [] for name in STEPS}
    for words, kind, fitted in found:
        for one in fitted.estimates(train.schema):
            if one.name in STEPS:
                step, (low, high) = STEPS[one.name][0], one.marginal.interval
                made[one.name].append(Bar(words, kind, *(step * value for value in (one.marginal.mean, low, high))))
    return made


def picture(made: dict[str, list[Bar]]) -> str:
    """Return the picture as SVG."""
    rows = [bar for group in made.values() for bar in group]
    low, high = (
        10 * of(end / 10) for of, end in ((floor, min(b.low for b in rows)), (ceil, max(b.high for b in rows)))
    )

    def x(value: float) -> float:
        return round(LEFT + (value - low) / (high - low) * (RIGHT - LEFT), 1)

    height = TOP + sum(GAP + ROW * len(group) for group in made.values()) + 62
    bottom, y, drawn = height - 62, float(TOP), []
    step = next(step for step in (10, 20, 50, 100, 200, 500, 1000) if high - low < TICKS_MAX * step)
    for value in range(ceil(low / step) * step, high + 1, step):
        drawn.append(f'<path class="{"grid" if value else "zero"}" d="M{x(value)} {TOP - 8} V{bottom}"/>')
        drawn.append(f'<text class="small" text-anchor="middle" x="{x(value)}" y="{bottom + 20}">{value}</text>')
    for name, group in made.items():
        y += GAP - 14
        drawn.append(f'<text x="24" y="{y}">{escape(STEPS[name][1])}</text>')
        y += 14
        for bar in group:
            y += ROW
            drawn.append(
                f'<text class="small" text-anchor="end" x="{LEFT - 20}" y="{y - 6}">{escape(bar.words)}</text>'
            )
            drawn.append(f'<path class="{bar.kind}" d="M{x(bar.low)} {y - 11} H{x(bar.high)}"/>')
            drawn.append(f'<circle class="{bar.kind}" cx="{x(bar.mean)}" cy="{y - 11}" r="4.5"/>')
    axis = "points of disease progression: mean and 95 % interval"
    head = [
        '<text class="head" x="24" y="36">What privacy costs 343 people with diabetes</text>',
        '<text class="small" x="24" y="60">Blue is private. Grey is not, and is shown only to compare.</text>',
        f'<text class="small" text-anchor="middle" x="{(LEFT + RIGHT) / 2}" y="{bottom + 44}">{axis}</text>',
    ]
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    paper = f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10" '
    paper += 'style="fill: var(--paper); stroke: var(--line)"/>'
    title = "<title>Coefficients of a regression at three privacy budgets and without privacy</title>"
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    return "\n  ".join([opening, title, f"<style>{STYLE}\n  </style>", paper, *head, *drawn]) + "\n</svg>\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=PICTURE, metavar="SVG", help="default: docs/result.svg")
    parser.parse_args().output.write_text(picture(bars()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
