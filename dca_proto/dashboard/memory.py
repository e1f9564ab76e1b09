"""What the dashboard sees at each look, and remembers of each actor though the actor stops and starts again."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from dca_proto.results.series import SeriesSlot
from dca_proto.results.status import StatedResult, Status, Statuses

RESULTS_MAX = 200
_SERIES_MAX = 20


class Seen(NamedTuple):
    """How the actors are now, the results of trainers that do not run, and the slots of standing jobs by title."""

    statuses: Statuses
    results: Sequence[StatedResult] = ()
    series: Mapping[str, Sequence[SeriesSlot]] = MappingProxyType({})


class Memory:
    """The results that trainers have stated, in the order of their times."""

    def __init__(self) -> None:
        self._results: dict[str, StatedResult] = {}

    def note(self, statuses: Iterable[Status], others: Iterable[StatedResult] = ()) -> None:
        """Remember the results in these statuses and others; the oldest are forgotten beyond `RESULTS_MAX`."""
        for result in itertools.chain(others, *(status.results for status in statuses)):
            self._results[result.round_id] = result
        while len(self._results) > RESULTS_MAX:
            del self._results[min(self._results, key=lambda key: self._results[key].at)]

    @property
    def results(self) -> list[StatedResult]:
        """All results, the latest last."""
        return sorted(self._results.values(), key=lambda result: result.at)

    def series(self) -> dict[str, list[tuple[StatedResult, int]]]:
        """Return the results that have a number of each name, with its place in them: by statistic and name."""
        found: dict[str, list[tuple[StatedResult, int]]] = {}
        for result in self.results:
            for place, outcome in enumerate(result.outcomes):
                found.setdefault(f"{result.statistic}: {outcome.label}", []).append((result, place))
        return dict(sorted(found.items(), key=lambda item: -len(item[1]))[:_SERIES_MAX])
