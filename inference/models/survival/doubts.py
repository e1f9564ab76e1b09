"""Reasons to doubt hazards from noisy scores: rare values, groups and rows that noise hides, curves, far requests."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dca_proto.statistics.survival_score import contrast
from dca_proto.wording import listed
from inference.models.doubts import AWAY_MAX, about_collinearity, about_far_request, about_rare_values
from inference.models.score_regression import Normal
from inference.models.survival import scoring
from inference.models.survival.curvature import Curvature, curvature
from inference.models.survival.rounds import Columns
from inference.models.survival.scoring import Part, Released, Rows
from inference.problem import Array

FAR = 6.0  # scales from a feature's centre beyond which values are rare
CURVED = 0.01  # share of fits to straight log hazards that would warn of a curve if its law were normal; 4 % do
DOUBT_MAX = 0.6  # largest sd of rare rows' log hazard for which its law is nearly normal


def warnings_of(
    released: Sequence[Released], rows: Rows, theta: Normal, n: float, columns: Columns, farthest: Array
) -> list[str]:
    """Return doubts. Args: farthest: public bound of each feature, in scales from its centre."""
    one = released[0]
    squares = scoring.matrix(one.information, rows.intervals, rows.x.shape[1])[-rows.mean.size :, -rows.mean.size :]
    warnings = list(about_collinearity(columns.features, squares, sqrt(one.information_noise)))
    last, effects = Part(released[-1], rows), slice(-rows.mean.size, None)
    doubt = np.maximum(np.abs(last.skew), 1.0) * np.sqrt(np.diag(theta.cov))
    unsure = (doubt > DOUBT_MAX)[effects] | (last.hidden[effects] & (farthest > FAR))
    warnings += about_rare_values(columns.features, unsure)
    warnings += about_curves(curvature([Part(one, rows) for one in released], n), columns)
    rare = _hidden_groups(released[-1], rows)
    if columns.groups > 1 and rare.any():
        warnings.append(
            f"few rows are of {listed(list(np.array(columns.group_labels)[rare]))}, or noise hides them, so intervals "
            f"of groups may fail; set no group, so that {columns.group} is a feature, or merge groups"
        )
    hazards = np.diag(last.slope)[: rows.intervals]
    matters = np.sqrt(np.r_[hazards / hazards.sum(), np.ones(theta.mean.size - hazards.size)])  # few events: less
    away = float((matters * np.abs(theta.mean - released[-1].request.theta)).max())
    return warnings + about_far_request(away, AWAY_MAX, "raise epsilon, or give fewer intervals")


def about_curves(found: Curvature | None, columns: Columns) -> list[str]:
    """Return a warning if the log hazard is curved in a feature; false alarms: `CURVED` for all features together.

    A feature with two values cannot be curved: what it shows is noise.
    """
    if found is None:
        return []
    features, limit = np.array(columns.features), -ndtri(CURVED / 2 / len(columns.features))
    far = np.abs(found.mean) > limit * np.sqrt(found.noise + found.sampling)
    far &= ~np.isin(features, columns.two_valued)
    if not far.any():
        return []
    which = listed(list(features[far]))
    return [
        f"the log hazard seems to be curved in {which}, so intervals may hold for no slope: rounds weigh rows far out "
        "less; give the logarithm or the root of a feature whose first units matter more"
    ]


def _hidden_groups(released: Released, rows: Rows) -> NDArray[np.bool_]:
    """Return for each group whether noise hides the information of its own rows."""
    k, groups = rows.intervals, rows.shares.size
    if groups == 1:
        return np.zeros(1, bool)
    further = rows.shares[1:]
    of_groups = np.vstack([-np.ones(groups - 1), np.eye(groups - 1)]) / contrast(further)
    parts = np.hstack(
        [np.repeat(rows.shares[:, None], k, axis=1), of_groups]
    )  # a group's indicator in the model's columns
    size = k + groups - 1
    own = scoring.matrix(released.information, k, rows.x.shape[1])[:size, :size]
    entries = np.triu(np.full((size, size), 2.0), 1) + np.eye(size)
    entries[:k, :k] *= np.eye(k)  # the others are known to be 0
    noise = np.sqrt(released.information_noise * ((entries * np.einsum("gi,gj->gij", parts, parts)) ** 2).sum((1, 2)))
    return np.asarray(np.einsum("gi,ij,gj->g", parts, own, parts) < scoring.HIDDEN * noise)
