"""A picture of an audit: what the adversary sees in the two worlds, and its errors beside the claim.

Colours are Okabe and Ito's, which colour-blind people tell apart; lines differ in their dashes too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from dca_proto.privacy.rounding import at_least, at_most, claim_words
from emulator.audit.adversary import Samples
from emulator.audit.curves import CUTS, histograms, trade_off
from emulator.audit.finding import Finding

_BLUE, _ORANGE, _GREEN = "#0072B2", "#D55E00", "#009E73"


def plot_audit(samples: Samples, finding: Finding, path: Path, *, title: str) -> None:
    """Write the picture.

    Args:
        samples: what the adversary saw in each world. path: its suffix says the format.
        title: one or two lines.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # heavy, and needed here only
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _worlds(left, samples, finding)
    _trade_off(right, samples, finding)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=12, wrap=True)
    figure.savefig(path, dpi=150)


def gaussian_trade_off(positives: NDArray[np.float64], mu: float) -> NDArray[np.float64]:
    """The least FNR that μ leaves at each FPR: Φ(Φ⁻¹(1 - FPR) - μ)."""
    curve: NDArray[np.float64] = norm.cdf(norm.isf(positives) - mu)
    return curve


def approximate_trade_off(positives: NDArray[np.float64], epsilon: float, delta: float) -> NDArray[np.float64]:
    """The least FNR that (ε, δ) leaves: max(0, 1 - δ - e^ε FPR, e^-ε (1 - δ - FPR))."""
    steep, flat = 1 - delta - np.exp(epsilon) * positives, np.exp(-epsilon) * (1 - delta - positives)
    least: NDArray[np.float64] = np.maximum(0.0, np.maximum(steep, flat))
    return least


def _worlds(axes: Any, samples: Samples, finding: Finding) -> None:
    """What is left after all that the coalition subtracts, in each world."""
    bins = histograms(samples).edges
    for values, label, colour, dashes in zip(
        samples, ("the victim holds x", "the victim holds x'"), (_BLUE, _ORANGE), ("-", "--"), strict=True
    ):
        axes.hist(values, bins, density=True, color=colour, alpha=0.25)
        axes.hist(values, bins, density=True, histtype="step", color=colour, linestyle=dashes, linewidth=2, label=label)
    axes.axvline(finding.threshold_gdp, color="0.3", linewidth=1, linestyle=":", label="threshold of the guess")
    axes.set(xlabel="what is left, on the line attacked (statistic's units)", ylabel="density", yticks=[])
    axes.set_title(f"noise variance left: {finding.variance_ratio:.4g} of what the claim needs", fontsize=10)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, fontsize=9)


def _trade_off(axes: Any, samples: Samples, finding: Finding) -> None:
    """Error rates of every threshold, and what the claim allows."""
    rates = np.concatenate([np.logspace(-5, -2, 60), np.linspace(0.01, 1, CUTS)])
    allowed = gaussian_trade_off(rates, finding.mu_claimed)
    axes.fill_between(rates, 0, allowed, color="0.9", linewidth=0, label="more than the claim allows")
    region = approximate_trade_off(rates, finding.epsilon_claimed, finding.delta)
    pair = f"{claim_words(finding.epsilon_claimed, finding.delta)} alone"
    axes.plot(rates, region, color=_GREEN, linestyle="-.", linewidth=1.5, label=pair)
    axes.plot(*trade_off(samples), color=_ORANGE, linewidth=3.5, label="the coalition's guesses")
    claim = f"claim, mu = {at_least(finding.mu_claimed)}"
    axes.plot(rates, allowed, color="black", linestyle="--", linewidth=1.5, label=claim)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set(xlabel="x' taken for x (false positives)", ylabel="x taken for x' (false negatives)")
    axes.set_title(
        f"epsilon proved: {at_most(finding.epsilon_lower_gdp)} of {at_least(finding.epsilon_claimed)} claimed",
        fontsize=10,
    )
    axes.legend(frameon=False, loc="upper right", fontsize=9)
