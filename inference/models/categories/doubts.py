"""Reasons to doubt a regression of categories from noisy sums: categories, features and values that noise hides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dca_proto.statistics.category_score import chances_of
from dca_proto.wording import listed
from inference.models.categories.scoring import Released, Rows
from inference.models.doubts import (
    AWAY_MAX,
    about_collinearity,
    about_far_request,
    about_rare_values,
    about_separate,
    inseparable,
    repeated,
)

HIDDEN = 3.0  # rows of a category below which noise hides it, in standard deviations of the noise
FEW = 12.0  # rows of a category below which its own figures are not nearly normal
HIDDEN_SDS = 5.0  # of `repeated`: the information of categories has more noise than that of their covariances
RARE_SD = 0.6  # largest sd of the log odds of a feature's rare values for which their law is nearly normal


def warnings_of(law: Any, released: Sequence[Released], rows: Rows, n: float) -> list[str]:
    """Return doubts, a sentence each. Args: law: a `Categories`."""
    model, last = law.model, released[-1]
    warnings = list(about_collinearity(law.features, rows.cov, rows.doubt))
    heads = model.effects.reshape(-1, model.features)
    one = max((law.cov[np.ix_(head, head)] for head in heads), key=lambda cov: float(np.linalg.eigvalsh(cov)[-1]))
    if not warnings and (
        mixed := inseparable(law.features, one) or repeated(law.features, rows.cov, rows.doubt, HIDDEN_SDS)
    ):
        warnings.append(about_separate(mixed))
    warnings += _about_categories(law, last, rows, n)
    away = np.abs(law.mean - model.phi(last.request.theta))[model.effects]
    warnings += about_far_request(float(away.max()), AWAY_MAX, "ask for more rounds, or raise epsilon")
    spread = np.sqrt(np.diag(law.cov))[heads].max(axis=0)
    return warnings + about_rare_values(law.features, spread * np.abs(rows.far) > RARE_SD)


def _about_categories(law: Any, last: Released, rows: Rows, n: float) -> list[str]:
    """Warn of categories that noise hides, or that are too rare."""
    noise = float(np.sqrt(last.noise)) * n
    model = law.model
    chances = chances_of(model.theta(law.mean), rows.x, model.classes, ordered=model.ordered).each
    expected = n * rows.share * chances.mean(axis=0)
    few = expected < np.maximum(HIDDEN * noise, FEW)
    if not few.any():
        return []
    names = listed([name for name, is_few in zip(law.labels, few, strict=True) if is_few], 8)
    which = "thresholds beside" if law.model.ordered else "all figures of"
    advice = (
        f"state bounds of {law.target} that end before them, so that they count as the last category"
        if law.model.ordered
        else "merge them with others"
    )
    return [
        f"noise hides how many rows have {law.target} {names}, or there are few: {which} {names} may lie beyond their "
        f"intervals; {advice}, raise epsilon, or take more rows"
    ]
