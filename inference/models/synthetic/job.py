"""Job `synthetic`: rows that resemble the clients' rows, from a secure sum of marginals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from dca_proto.aggregate import NoisyAggregate
from dca_proto.protocol.wire.kinds import NodeRelease, SecureSum
from dca_proto.statistics.counting import about_missing
from dca_proto.wording import counted as counted_words
from dca_proto.wording import listed, to_install
from inference.draws import attributes
from inference.errors import DataError
from inference.jobs.base import Conditions, LearningJob, Stage, one_round
from inference.jobs.estimates import SHARE, Estimate
from inference.jobs.examples import CLASS, NUMBER, Clean, Example
from inference.jobs.settings import JobSettings, require_count, require_share, rows_of_nodes, setting, within
from inference.jobs.summary import Standard, Summary
from inference.models.synthetic.comparison import Comparison, marginal_fits
from inference.models.synthetic.grid import Grid
from inference.models.synthetic.model import independent
from inference.models.synthetic.release import Release
from inference.models.synthetic.rows import SyntheticRows
from inference.models.synthetic.structure import (
    NONE,
    RULES,
    TREE,
    all_pairs,
    check_size,
    public_tables,
    require_pairs,
    tree_of,
    weights_of,
    with_columns,
)
from inference.posterior import Posterior
from inference.problem import Problem, Schema, stream
from inference.rounds import Job, request_of

SYNTHETIC = "synthetic"
BINS, SHARE_OF_TREE, ROWS_ASKED_MAX = 16, 0.2, 10_000_000
_GUESS = 0.3  # part of the rows that noise moves to other cells
_CHAINS, _DRAWS, _NAMED_MAX = 4, 250, 6
INTERVALS = "intervals are of the released shares; a figure computed from synthetic rows has none of its own"
NOT_THE_TRUTH = (
    "an interval computed from synthetic rows is not one of the truth: it knows neither the noise nor what the model "
    "leaves out; for figures with intervals, ask the jobs describe, compare or a regression"
)


@dataclass(frozen=True)
class Settings(JobSettings):
    """Settings of `synthetic`."""

    bins: int = setting(BINS, "Number of bins of a column of numbers, 2 to 64.", within(2, 64))
    codes: str | None = setting(
        None,
        "The columns of codes, as in sex,smoker; by default those with bounds 0:1 or listed categories.",
        names=True,
    )
    whole: str | None = setting(
        None, "The columns of whole numbers, as in age,children; others are real numbers.", names=True
    )
    pairs: str = setting(
        TREE,
        f"Which pairs of columns are counted: {', '.join(RULES)} (a first round chooses a tree, no pair, all with the "
        "target), or named ones, as in age:income,sex:income.",
        require_pairs,
        names=True,
    )
    share: float = setting(SHARE_OF_TREE, "Share of the budget that chooses the tree.", require_share)
    rows: int | None = setting(
        None, "Number of synthetic rows; by default that of the clients, or of data nodes' rows.", require_count
    )
    rows_max: int = rows_of_nodes()

    def __post_init__(self) -> None:
        super().__post_init__()
        within(1, ROWS_ASKED_MAX)("rows", self.rows)

    def grid(self, schema: Schema) -> Grid:
        """Return the cells of all columns. Raises `DataError` as `Grid.of`."""
        return Grid.of(schema, self.bins, self.codes, self.whole)


class Synthetic(LearningJob):
    """Synthetic rows, from the marginals of columns and of pairs."""

    name, title, settings, whole, makes_rows = SYNTHETIC, "Shares of columns", Settings, True, True
    kinds = (SecureSum, NodeRelease)
    changeable = ("rows",)
    estimator = "rows are no prediction: `PrivateSynthesizer` has fit and sample, and is made by hand"
    about = "a CSV of [synthetic rows](jobs/synthetic.md) from marginals of columns and pairs"
    examples = (
        Example(NUMBER, {"bins": 3, "pairs": "none"}),
        Example(CLASS, {"bins": 3, "pairs": "none"}, kind=NodeRelease, label="of data nodes"),
    )
    clean = Clean("dependent columns", {"bins": 4, "pairs": "none"})

    def check(self, schema: Schema, settings: Settings) -> None:
        grid = settings.grid(schema)
        tables = public_tables(grid, settings.pairs)
        if tables is not None:
            check_size(grid, with_columns(grid, tables))
        else:
            check_size(grid, all_pairs(grid), is_first=True)
        if settings.pairs != NONE:
            require_library()

    def plan(self, schema: Schema, settings: Settings, conditions: Conditions) -> list[Stage]:
        grid = settings.grid(schema)
        tables = public_tables(grid, settings.pairs)
        columns = counted_words(len(grid.names), "column")
        if tables is not None:
            pairs = f" and {counted_words(len(tables), 'table')} of several" if tables else ""
            return one_round(f"marginals of {columns}{pairs}")
        pairs = counted_words(len(all_pairs(grid)), "pair")
        return [
            Stage(1, settings.share, f"on {pairs}, to choose a tree of them"),
            Stage(1, 1 - settings.share, f"on {columns} and the tree's pairs"),
        ]

    def rounds(self, schema: Schema, settings: Settings, conditions: Conditions) -> Job[list[NoisyAggregate]]:
        grid, outcome, left = settings.grid(schema), [], 1.0
        kind, most = conditions.kind, settings.rows_max
        tables = public_tables(grid, settings.pairs)
        if tables is None:
            first = grid.statistic(all_pairs(grid))
            outcome.append((yield request_of(first, settings.share, kind, most)))
            tables, left = tree_of(Release.of(outcome).tables, len(grid.names)), 1 - settings.share
        chosen = with_columns(grid, tables)
        outcome.append((yield request_of(grid.statistic(chosen, weights_of(grid, chosen)), left, kind, most)))
        return outcome

    def learned(
        self, outcome: list[NoisyAggregate], schema: Schema, settings: Settings, conditions: Conditions
    ) -> Posterior:
        return posterior_of(Release.of(outcome), schema, settings, conditions, attributes(*outcome, schema=schema))

    def model(self, schema: Schema, settings: Settings) -> str:
        grid = settings.grid(schema)
        return f"{counted_words(len(grid.names), 'column')} of {sum(grid.sizes)} cells: {listed(grid.names)}"

    def reference(self, train: Problem, settings: Settings) -> Posterior:
        """Return the exact shares of the rows, which are kept to compare synthetic rows with."""
        grid = settings.grid(train.schema)
        cells = (statistic := grid.statistic()).cells_of(train.values(*grid.names).reshape(len(train.y), -1))
        exact = Release.exact(statistic, cells)
        rows = SyntheticRows(grid, cells, train.rows, train.schema.categories)
        return _posterior(exact, rows, stream(0, "reference"))

    def summarise(
        self, result: Any, reference: Any, train: Problem | None, test: Problem | None, schema: Schema
    ) -> Summary:
        own: Posterior = result
        summary = super().summarise(result, _matched(own, reference), train, test, schema)
        if isinstance(own.predictor, Comparison):
            truth = None if reference is None else reference.synthetic.cells
            summary["marginals"] = marginal_fits(own.predictor.release, own.predictor.rows, truth)
        return summary


def require_library() -> None:
    """Raise `DataError` unless `mbi` is installed."""
    from importlib.util import find_spec

    if find_spec("mbi") is None:
        raise DataError(f"job {SYNTHETIC!r} needs mbi, which is not installed: {to_install('synthetic')}")


def posterior_of(
    release: Release,
    schema: Schema,
    settings: Settings,
    conditions: Conditions,
    attrs: Mapping[str, object] = MappingProxyType({}),
) -> Posterior:
    """Fit the model of a release, draw rows, and return both as a posterior.

    Args:
        attrs: the provenance; without it, no epsilon may be claimed.
    """
    grid, rng = settings.grid(schema), conditions.rng
    if all(len(table.places) == 1 for table in release.tables):
        model = independent(release)
    else:
        require_library()
        from inference.models.synthetic.pgm import fitted  # needs JAX

        model = fitted(release, conditions.on_sampling)
    cells = model.rows(settings.rows or release.number, rng)
    rows = SyntheticRows(grid, cells, grid.values(cells, rng), schema.categories, model)
    return _posterior(release, rows, rng, attrs)


def _posterior(
    release: Release,
    rows: SyntheticRows,
    rng: np.random.Generator,
    attrs: Mapping[str, object] = MappingProxyType({}),
) -> Posterior:
    grid, axis = rows.grid, Standard(unit=SHARE, scale=1.0, centre=0.0)
    named = [
        Estimate(name, SHARE, figure, axis=axis)
        for place in range(len(grid.names))
        for name, figure in zip(_cell_names(rows, release, place), release.shares(place), strict=False)
    ]
    sd = np.array([[one.marginal.mean, one.marginal.sd or 0.0] for one in named])
    draws = (sd[:, 0] + sd[:, 1] * rng.standard_normal((_CHAINS, _DRAWS, len(named)))).clip(0.0, 1.0)
    fits = marginal_fits(release, rows)
    worst = max(fits, key=lambda fit: fit["released_distance"] - fit["noise_distance"])
    pairs = [grid.title(table.places) for table in release.tables if len(table.places) > 1]
    noise, own = (_part(float(np.mean([fit[key] for fit in fits]))) for key in ("noise_distance", "released_distance"))
    remarks = {
        "rows": f"{len(rows.cells):,} synthetic rows of {counted_words(len(grid.names), 'column')}; the release counts "
        f"{release.number:,} {release.unit}",
        "pairs": listed(pairs, len(pairs)) if pairs else "none: columns are drawn independently",
        "marginals": f"noise moves a mean of {noise} of the rows of a marginal to other cells, the rows are {own} from "
        f"the release; farthest {worst['name']}, {_part(worst['released_distance'])}, where noise makes "
        f"{_part(worst['noise_distance'])}",
        "caution": NOT_THE_TRUTH,
    }
    extras: Summary = {"remarks": remarks, "interval_note": INTERVALS, "headline": "rows"}
    return Posterior(
        SYNTHETIC,
        {"shares": draws},
        axes={"shares": ("cell",)},
        coords={"cell": tuple(one.name for one in named)},
        private=bool(attrs.get("private")),
        attrs=attrs,
        notes=tuple(_doubts(release, rows, fits)),
        table=lambda schema: named,
        extras=lambda: extras,
        predictor=Comparison(release, rows),
        synthetic=rows,
    )


def _part(share: float) -> str:
    return f"{100 * min(share, 1.0):.{2 if share < 0.995 else 3}g} %"


def _cell_names(rows: SyntheticRows, release: Release, place: int) -> Sequence[str]:
    """Return the names of a column's cells, with the texts of listed categories."""
    texts, name = rows.categories.get(rows.grid.names[place]), rows.grid.names[place]
    if texts is None:
        return release.statistic.cell_names(place)
    return (*(f"{name} = {text}" for text in texts), f"{name} missing")


def _matched(own: Posterior, reference: Posterior | None) -> Any:
    """Return the figures without privacy of the estimates, by name; the share of a cell that is left out is known."""
    if reference is None:
        return None
    known = {one.name: one.marginal for one in reference.estimates()}
    return [known.get(one.name) for one in own.estimates()]


def _doubts(release: Release, rows: SyntheticRows, fits: Sequence[Any]) -> list[str]:
    """Return reasons to doubt the rows, a sentence each."""
    hidden = [fit["name"] for fit in fits if fit["noise_distance"] > _GUESS]
    found = []
    if hidden:
        found.append(
            f"the noise hides most of the counts of {listed(hidden, _NAMED_MAX)}, so that the rows are hardly more "
            "than a guess there: give fewer bins, columns or pairs, ask more clients, or give a larger epsilon"
        )
    number, sd = release.total
    return [*found, *about_missing(number, sd, release.rows, "a row", of=release.unit)]
