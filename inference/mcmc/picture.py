"""Pictures of a posterior: each parameter's density with its interval, the prior beside it, and no privacy to compare.

Densities are kernel estimates of the draws, reflected where a parameter ends (at 0, or at 0 and 1), so that they do not
run over its end. Colours are Okabe and Ito's, which colour-blind people tell apart; lines differ too, so that the
picture survives a grey printer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.draws import tails_of

Array = NDArray[np.float64]

PRIVATE, OPEN, BEFORE = "#0072B2", "#D55E00", "0.45"
COLUMNS_MAX, PANELS_MAX = 3, 24  # more would be no picture
POINTS = 256
WINDOW = (0.001, 0.999)  # quantiles of the draws between which a panel reaches
MARGIN = 0.08  # of its width, on either side
DRAWS_MAX = 4000  # for a density
TALLEST = 3.0  # times as high as the posterior, at most; what is higher runs out of the picture


class Panel(NamedTuple):
    """One number's draws: the posterior's, the prior's and, without privacy, the posterior's again; each ``(k,)``."""

    label: str
    posterior: Array
    prior: Array | None
    without_privacy: Array | None

    @property
    def ends(self) -> tuple[float, ...]:
        """Where the parameter ends, as far as its draws say."""
        known = [array for array in self[1:] if isinstance(array, np.ndarray)]
        low, high = min(array.min() for array in known), max(array.max() for array in known)
        if low < 0:
            return ()
        return (0.0,) if high > 1 else (0.0, 1.0)

    @property
    def window(self) -> tuple[float, float]:
        """From where to where it is worth a look."""
        shown = [array for array in (self.posterior, self.without_privacy) if array is not None]
        ranges = np.array([np.quantile(array, WINDOW) for array in shown])
        low, high = ranges[:, 0].min(), ranges[:, 1].max()
        margin = MARGIN * (high - low) or 1.0  # a constant has no width
        ends = self.ends
        low, high = low - margin, high + margin
        return (max(low, 0.0) if ends else low), (min(high, 1.0) if len(ends) == 2 else high)


def panels_of(
    name: str, labels: Sequence[str], posterior: Array, prior: Array | None, without_privacy: Array | None
) -> list[Panel]:
    """A panel for each number of a parameter, whose draws have the shape ``(chains, draws)`` or one axis more."""
    if posterior.ndim == 2:
        return [Panel(name, posterior.ravel(), prior, None if without_privacy is None else without_privacy.ravel())]
    return [
        Panel(
            f"{name}: {label}",
            posterior[..., j].ravel(),
            None if prior is None else prior[..., j],
            None if without_privacy is None else without_privacy[..., j].ravel(),
        )
        for j, label in enumerate(labels)
    ]


def plot_posterior(panels: Sequence[Panel], path: Path, *, title: str, level: float, caption: str = "") -> Path:
    """Write the picture of the first `PANELS_MAX` panels and return its path; the suffix says the format.

    Raises:
        DataError: the level of the intervals is not between 0 and 1.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # heavy, and of no use without pictures
    from matplotlib.figure import Figure

    tails = tails_of(level)
    shown = list(panels)[:PANELS_MAX]
    columns = min(COLUMNS_MAX, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(1 + 3.6 * columns, 1.3 + 2.5 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    places = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, panel in zip(places, shown, strict=False):
        _draw(axes, panel, tails, level)
    for axes in places[len(shown) :]:
        axes.set_axis_off()
    handles: dict[str, Any] = {}
    for axes in places:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)
    heading = f"{title}: posterior"
    figure.suptitle(f"{heading}\n{caption}" if caption else heading, fontsize=12, wrap=True)
    figure.savefig(path, dpi=150)
    return path


def _draw(axes: Any, panel: Panel, tails: list[float], level: float) -> None:
    x = np.linspace(*panel.window, POINTS)
    density = _density(panel.posterior, x, panel.ends)
    axes.plot(x, density, color=PRIVATE, linewidth=2, label="posterior")
    low, high = np.quantile(panel.posterior, tails)
    inside = (x >= low) & (x <= high)
    axes.fill_between(x[inside], density[inside], color=PRIVATE, alpha=0.25, label=f"its {100 * level:g} % interval")
    axes.axvline(panel.posterior.mean(), color=PRIVATE, linewidth=1)
    top = density.max()
    most = TALLEST * top
    if panel.without_privacy is not None:
        plain = _density(panel.without_privacy, x, panel.ends)
        top = max(top, min(plain.max(), most))
        axes.plot(x, plain, color=OPEN, linewidth=1.5, linestyle="--", label="without privacy")
    if panel.prior is not None:
        before = _density(panel.prior, x, panel.ends)
        top = max(top, min(before.max(), most))
        axes.plot(x, before, color=BEFORE, linewidth=1.5, linestyle=":", label="prior")
    axes.set(yticks=[], xlim=panel.window, ylim=(0, 1.05 * top or 1.0))
    axes.set_title(panel.label, fontsize=10, fontweight="bold")
    axes.locator_params(axis="x", nbins=5)
    axes.spines[["top", "left", "right"]].set_visible(False)


def _density(draws: Array, x: Array, ends: tuple[float, ...]) -> Array:
    """Of draws at x: a kernel estimate, with what runs over an end put back inside."""
    from scipy.stats import gaussian_kde  # slow to import

    chosen = draws[:: -(-len(draws) // DRAWS_MAX)]
    if np.ptp(chosen) == 0:
        return np.zeros_like(x)
    estimate = gaussian_kde(chosen)
    return np.asarray(sum((estimate(2 * end - x) for end in ends), estimate(x)))
