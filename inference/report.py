"""A picture of a regression: each coefficient with its interval, private beside non-private.

Each coefficient has a row of its own with an axis in its own units, since units differ. Colours are Okabe and Ito's,
which colour-blind people tell apart; markers differ too, so that the picture survives a grey printer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inference.regression import RegressionResult

INTERVAL_SDS = 1.96  # 95 % of a normal posterior
STYLES = (("#0072B2", "o"), ("#D55E00", "s"))


def plot_coefficients(private: RegressionResult, reference: RegressionResult, path: Path, *, caption: str = "") -> Path:
    """Write the picture and return its path.

    Args:
        private: the regression from noisy aggregates. reference: the same model without privacy.
        path: where to; the suffix says the format (png, svg, pdf).
        caption: one line below the title, such as the privacy that was spent.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # heavy, and of no use to a device or a server
    from matplotlib.figure import Figure

    features = private.schema.features
    figure = Figure(figsize=(7.2, 1.5 + 1.25 * len(features)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(features), 1, squeeze=False)[:, 0]
    for index, axes in enumerate(panels):
        _panel(axes, private, reference, index)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    title = f"Effect on {private.schema.target}: mean ± 95 % interval"
    figure.suptitle(f"{title}\n{caption}" if caption else title, fontsize=12)
    figure.savefig(path, dpi=150)
    return path


def _panel(axes: Any, private: RegressionResult, reference: RegressionResult, index: int) -> None:
    """One coefficient: the two intervals above each other, and the line of no effect."""
    feature = private.schema.features[index]
    labels = ("private" if private.private else "not private", "without privacy")
    for height, result, label, (colour, marker) in zip((1, 0), (private, reference), labels, STYLES, strict=True):
        mean, half = result.coefficients[index], INTERVAL_SDS * result.coefficient_sd[index]
        axes.errorbar(
            mean, height, xerr=half, fmt=marker, color=colour, label=label, capsize=4, markersize=7, linewidth=2
        )
        axes.annotate(f"{mean:.3g} ± {half:.2g}", (mean, height), (0, 8), textcoords="offset points", ha="center")
    axes.axvline(0, color="0.4", linewidth=1, linestyle=":")
    axes.set(yticks=[], ylim=(-0.6, 1.9), ylabel=feature, xlabel=private.schema.slope_unit(feature))
    axes.yaxis.label.set(rotation=0, ha="right", va="center", fontweight="bold")
    axes.spines[["top", "left", "right"]].set_visible(False)
