"""`PrivateSynthesizer`: synthetic rows with `fit` and `sample`.

PrivateSynthesizer(schema=schema).fit(rounds).sample(1000)      over a running trainer or ideal rounds
PrivateSynthesizer(schema=schema).fit(X).sample(1000)           from raw rows, without privacy
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_array, check_is_fitted

from dca_proto.aggregate import NoisyAggregate
from inference.errors import DataError
from inference.jobs.base import Conditions
from inference.jobs.settings import require_count
from inference.models.estimator import PrivateEstimator
from inference.models.synthetic.job import BINS, SHARE_OF_TREE, Settings, Synthetic, posterior_of
from inference.models.synthetic.release import Release
from inference.models.synthetic.structure import TREE, all_pairs, public_tables, tree_of, with_columns
from inference.posterior import Posterior
from inference.problem import Array, Schema, by_name
from inference.rounds import Replayed, Rounds, run


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateSynthesizer(PrivateEstimator):
    """Synthetic rows of all columns of a schema, from rows, all rounds' aggregates, or over rounds.

    Args:
        schema: names and public bounds of all columns. Always needed.
        bins, codes, whole, pairs, share: as the settings of job `synthetic`.
        random_state: seed of the rows, or a numpy `Generator`. The privacy noise does not use it.

    Attributes:
        fit_: shares of the columns' cells, and synthetic rows (`inference.posterior.Posterior`).
        private_, epsilon_, delta_, warnings_, n_features_in_, feature_names_in_: `PrivateEstimator`.
    """

    settings = Settings
    schema: Schema | None = None
    bins: int = BINS
    codes: str | None = None
    whole: str | None = None
    pairs: str = TREE
    share: float = SHARE_OF_TREE
    random_state: int | np.random.Generator | None = None

    def sample(self, rows: int | None = None) -> Array:
        """Return synthetic rows ``(rows, columns)``, by default as many as were counted; a missing value is NaN.

        Raises:
            DataError: the number is not a whole number of at least 1.
        """
        check_is_fitted(self, "fit_")
        require_count("rows", rows)
        made = self.fit_.synthetic
        return np.asarray((made if rows is None else made.more(rows, self._rng)).values)

    @property
    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self.random_state)

    def _known(self) -> tuple[Schema, Settings, Conditions]:
        if self.schema is None:
            raise DataError("public bounds are missing; give schema=Schema(features, target, bounds)")
        names = ("bins", "codes", "whole", "pairs", "share")
        own = Settings(**{name: getattr(self, name) for name in names})
        Synthetic().check(self.schema, own)
        return self.schema, own, Conditions(1, 0, 1.0, self._rng)

    def _of_rows(self, X: Any, y: Any) -> Posterior:
        schema, own, known = self._known()
        if y is not None:
            raise DataError("y was given; all columns of the schema are columns of X, so leave y out")
        rows = check_array(by_name(X, schema.columns), dtype=np.float64, ensure_all_finite="allow-nan")
        if rows.shape[1] != len(schema.columns):
            raise DataError(f"rows have {rows.shape[1]} columns; expected those of the schema: {len(schema.columns)}")
        grid = own.grid(schema)
        tables, cells = public_tables(grid, own.pairs), grid.statistic().cells_of(rows)
        if tables is None:
            tables = tree_of(Release.exact(grid.statistic(all_pairs(grid)), cells).tables, len(grid.names))
        exact = Release.exact(grid.statistic(with_columns(grid, tables)), cells)
        return posterior_of(exact, schema, own, known)

    def _of_aggregates(self, aggregates: Sequence[NoisyAggregate]) -> Posterior:
        return self._over_rounds(Replayed(aggregates))

    def _over_rounds(self, source: Rounds) -> Posterior:
        schema, own, known = self._known()
        job = Synthetic()
        found: Posterior = job.finish(run(job.make(schema, own, known), source), schema, own, known)
        return found

    def _keep(self, fit: Posterior) -> None:
        assert self.schema is not None, "it was checked"
        self._name_features(self.schema.columns)
