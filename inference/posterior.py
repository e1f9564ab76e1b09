"""The result of jobs and estimators: one interface for every posterior.

    estimates         a table in the user's units: mean, sd, 95 % interval, and the prior's interval
    summary           the table with estimates without privacy, warnings and scores on held-out rows
    inference_data    draws, for ArviZ
    plot              a picture of that table
    refit             the posterior of the same aggregates under another prior; it spends no privacy

`inference.models.coefficients` has the class of regressions with a normal posterior, `inference.mcmc.posterior` that
of posteriors known by draws. Terminal, JSON and picture all show a summary (`inference.jobs.estimates`,
`inference.jobs.picture`).
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

REPAIR, PRIOR = "repair", "prior_"  # a refit may change the setting `repair`, and those that begin with `prior_`


class Posterior(ABC):
    """A posterior distribution.

    Attributes:
        refitter: makes the posterior from the same aggregates under another prior; None if no aggregates are kept.
    """

    refitter: Callable[..., Any] | None = None

    @property
    def warnings(self) -> Sequence[str]:
        """Reasons to doubt the posterior, a sentence each."""
        return ()

    @abstractmethod
    def estimates(self, schema: Schema | None = None) -> list[Estimate]:
        """Return the table. Args: schema: gives the columns' names and units."""

    def refit(self, **prior: Any) -> Self:
        """Return the posterior of the same aggregates under another prior; it needs no round and spends no privacy.

        Args:
            prior: by the names of the job's settings.

        Raises:
            DataError: no aggregates are kept, as in a fit of raw rows; a name is unknown; a number is out of range.
        """
        if self.refitter is None:
            raise DataError("this posterior keeps no aggregates to learn from; fit the rows again with the other prior")
        takes = signature(self.refitter).parameters
        if all(parameter.kind is not Parameter.VAR_KEYWORD for parameter in takes.values()):  # else it checks the names
            known = [name for name in takes if name == REPAIR or name.startswith(PRIOR)]
            for name in prior:
                if name not in known:
                    raise unknown("setting", name, "what a refit changes", known)
        posterior: Self = self.refitter(**prior)
        return posterior

    def summary(
        self,
        schema: Schema | None = None,
        reference: Any = None,
        train: Problem | None = None,
        test: Problem | None = None,
    ) -> Summary:
        """Return the table with the one without privacy, warnings, and scores on rows that nobody learned from.

        Args:
            reference: the same model without privacy, or its figures. train: rows that were learned from, which give
                the constant prediction to compare with. test: rows to score on.
        """
        own = self.estimates(schema)
        references = self.reference_figures(reference, schema) if reference is not None else [None] * len(own)
        summary: Summary = {"warnings": list(self.warnings), **self.summary_extras()}
        for estimate, other in zip(own, references, strict=True):
            if estimate.table == INTERCEPT:
                summary["intercept"] = figures(estimate.figure, other)
            elif estimate.table == COEFFICIENTS:
                summary.setdefault("coefficients", []).append(estimate.row(other))
            else:
                summary.setdefault("estimates", []).append(estimate.row(other))
        summary["test"] = None if test is None else self.held_out_scores(reference, train, test)
        return summary

    def reference_figures(self, reference: Any, schema: Schema | None) -> Sequence[Figure | None]:
        """Return the figures without privacy, in the order of the estimates."""
        is_posterior = isinstance(reference, Posterior)
        return [estimate.figure for estimate in reference.estimates(schema)] if is_posterior else reference

    def plot(
        self,
        path: Path,
        *,
        title: str = "Posterior",
        reference: Any = None,
        schema: Schema | None = None,
        caption: str = "",
    ) -> Path:
        """Write a picture of the estimates and intervals, with those without privacy, and return its path.

        Args:
            path: the file; its suffix chooses the format (png, svg, pdf). caption: a line below the title. Others as in
                `summary`.
        """
        from inference.jobs.picture import plot_estimates  # needs Matplotlib

        summary, private = self.summary(schema, reference), bool(getattr(self, "private", True))
        return plot_estimates(summary, path, title=title, private=private, caption=caption)

    def summary_extras(self) -> Summary:
        """Return further entries of the summary."""
        return {}

    def held_out_scores(self, reference: Any, train: Problem | None, test: Problem) -> HeldOut | None:
        """Return scores on the test rows, if the model predicts them."""
        return None
