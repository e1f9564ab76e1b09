"""The graphical model nearest to released marginals, by `mbi` (Private-PGM).

Among all distributions whose log density is a sum of functions of the marginals' columns, it is the one whose marginals
are nearest to the released ones, in units of their noise. This is work on a private release, and costs no privacy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from inference.mcmc.nuts import keep_compiled
from inference.models.synthetic.model import Model, Potentials
from inference.models.synthetic.release import Release, without_hidden

with warnings.catch_warnings():  # about 32 bits, which `fitted` does not use, and about the cache of compiled programs
    warnings.simplefilter("ignore")
    import mbi

ITERATIONS, TOLERANCE = 2000, 1e-5
_LEAST_SD = 0.5  # of a count, so that exact counts can be fitted


def fitted(release: Release, on_iteration: Callable[[int, int], None] = lambda done, total: None) -> Model:
    """Return the model of a release.

    Args:
        on_iteration: called with the iterations done and their total.
    """
    given, done = without_hidden(release), 0
    keep_compiled()

    def called(_: Any) -> None:
        nonlocal done
        done += mbi.estimation.CALLBACK_EVERY
        on_iteration(done, ITERATIONS)

    with jax.enable_x64(True):
        measured = [
            mbi.LinearMeasurement(table.counts.ravel(), tuple(map(str, table.places)), max(table.sd, _LEAST_SD))
            for table in given
        ]
        domain = mbi.Domain([str(place) for place in range(len(release.kept))], release.kept)
        estimator = mbi.estimation.MirrorDescent()
        found = estimator.estimate(
            domain, measured, known_total=float(release.number), iters=ITERATIONS, callback_fn=called, tol=TOLERANCE
        )
        factors = [found.potentials[clique] for clique in found.potentials.cliques]
        potentials: Potentials = [
            (tuple(map(int, factor.domain.attributes)), np.asarray(factor.values, dtype=float)) for factor in factors
        ]
    on_iteration(ITERATIONS, ITERATIONS)
    return Model(release.kept, potentials)
