"""What jobs and estimators learn: one interface for every posterior.

    estimates         a table in the user's units: mean, sd, 95 % interval, and that of the prior
    summary           the table beside estimates without privacy, with warnings and scores on held-out rows
    inference_data    draws, for ArviZ
    plot              a picture of that table
    refit             the posterior of the same aggregates under another prior, at no price

`inference.models.coefficients` has the class of regressions with a normal posterior, `inference.mcmc.posterior` that
of draws. Terminal, JSON and picture are made from a summary (`inference.jobs.estimates`, `inference.jobs.picture`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Self

from inference.errors import DataError, unknown
from inference.jobs.estimates import COEFFICIENTS, INTERCEPT, Estimate, Figure, figures
from inference.jobs.summary import HeldOut, Summary
from inference.problem import Problem, Schema

REPAIR, PRIOR = "repair", "prior_"  # names of what a refit may change, or how they begin


class Posterior(ABC):
    """What was learned.

    Attributes:
        again: makes the posterior anew from the same aggregates, given another prior; None where nothing is kept.
    """

    again: Callable[..., Any] | None = None

    @property
    def warnings(self) -> Sequence[str]:
        """Reasons to doubt it, a sentence each."""
        return ()

    @abstractmethod
    def estimates(self, schema: Schema | None = None) -> list[Estimate]:
        """The table. Args: schema: of the columns, for their names and units."""

    def refit(self, **prior: Any) -> Self:
        """The posterior of the same aggregates under another prior: no round, and no privacy, is spent.

        Args:
            prior: by the names of the job's settings.

        Raises:
            DataError: nothing is kept to learn from, as of raw rows; a name is unknown; a number is out of range.
        """
        if self.again is None:
            raise DataError("this posterior keeps no aggregates to learn from; fit the rows again with the other prior")
        takes = signature(self.again).parameters
        if all(one.kind is not Parameter.VAR_KEYWORD for one in takes.values()):  # else it checks names by itself
            known = [name for name in takes if name == REPAIR or name.startswith(PRIOR)]
            for name in prior:
                if name not in known:
                    raise unknown("setting", name, "what a refit changes", known)
        found: Self = self.again(**prior)
        return found

    def summary(
        self,
        schema: Schema | None = None,
        reference: Any = None,
        train: Problem | None = None,
        test: Problem | None = None,
    ) -> Summary:
        """The table beside the one without privacy, warnings, and scores on rows that nobody learned from.

        Args:
            reference: the same model without privacy, or its figures. train: rows that were learned from, of which a
                constant prediction is made. test: rows to score on.
        """
        own = self.estimates(schema)
        beside = self.beside(reference, schema) if reference is not None else [None] * len(own)
        found: Summary = {"warnings": list(self.warnings), **self.more()}
        for one, other in zip(own, beside, strict=True):
            if one.table == INTERCEPT:
                found["intercept"] = figures(one.figure, other)
            elif one.table == COEFFICIENTS:
                found.setdefault("coefficients", []).append(one.row(other))
            else:
                found.setdefault("estimates", []).append(one.row(other))
        found["test"] = None if test is None else self.scored(reference, train, test)
        return found

    def beside(self, reference: Any, schema: Schema | None) -> Sequence[Figure | None]:
        """Figures without privacy, in the order of the estimates."""
        return [one.figure for one in reference.estimates(schema)] if isinstance(reference, Posterior) else reference

    def plot(
        self,
        path: Path,
        *,
        title: str = "Posterior",
        reference: Any = None,
        schema: Schema | None = None,
        caption: str = "",
    ) -> Path:
        """Write a picture of the estimates and intervals, beside those without privacy, and return its path.

        Args:
            path: where to; the suffix says the format (png, svg, pdf). caption: a line below the title. Others as of
                `summary`.
        """
        from inference.jobs.picture import plot_estimates  # needs Matplotlib

        said, private = self.summary(schema, reference), bool(getattr(self, "private", True))
        return plot_estimates(said, path, title=title, private=private, caption=caption)

    def more(self) -> Summary:
        """Further entries of the summary."""
        return {}

    def scored(self, reference: Any, train: Problem | None, test: Problem) -> HeldOut | None:
        """Scores on the test rows, where the model predicts any."""
        return None
