"""The common part of jobs on LDP reports: their sampling settings, and checks before any client is asked.

Each client reports once, by a local mechanism and so private by itself; the posterior models the reports' noise
(`inference.models.fit`). Once the clients have reported, other draws and another prior cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from typing import Any

from dca_proto.protocol.wire.kinds import LdpReport
from dca_proto.wording import to_install
from inference.draws import CHAINS, DRAWS
from inference.errors import DataError
from inference.jobs.base import Conditions, LearningJob
from inference.jobs.settings import JobSettings, given, require_count, require_positive, setting
from inference.mcmc.run import WARMUP, Run
from inference.models.priors import RegressionPrior
from inference.problem import Array, Schema

SAMPLED = ("chains", "warmup", "draws", "require_mixed", "seed")
"""Settings for drawing."""
REGRESSION_PRIOR = ("coefficient_sd", "intercept_sd", "feature_sd", "residual_sd")
"""Settings for a regression's prior."""
OF_BOUNDS = "on columns mapped from their bounds to ±1; by default from the bounds"
NOT_OF_REPORTS = "an estimator fits rows, aggregates or rounds of sums, not reports"
_NEEDED = {"numpyro": "NumPyro", "jax": "JAX", "arviz": "ArviZ"}


@dataclass(frozen=True)
class SamplerSettings(JobSettings):
    """Settings for drawing from the posterior."""

    chains: int = setting(CHAINS, "Number of chains, drawn side by side.", require_count)
    warmup: int = setting(WARMUP, "Iterations per chain before its first draw.", require_count)
    draws: int = setting(DRAWS, "Draws kept per chain.", require_count)
    require_mixed: bool = setting(True, "false accepts draws of chains that have not mixed (R-hat of 1.1 or more).")

    def run(self, conditions: Conditions) -> Run:
        """Return the keyword arguments of the fits."""
        return {
            "chains": self.chains,
            "warmup": self.warmup,
            "draws": self.draws,
            "seed": int(conditions.rng.integers(2**31)),
            "on_progress": conditions.on_sampling,
            "keep_warmup": True,
            "require_mixed": self.require_mixed,
        }

    @property
    def words(self) -> str:
        """A description of the chains, as text."""
        return f"{self.chains} chains of {self.warmup + self.draws} iterations"


@dataclass(frozen=True)
class RegressionSettings(SamplerSettings):
    """Settings of a regression on columns that clients map from their bounds to ±1, with its prior."""

    coefficient_sd: float | None = setting(
        None, f"Standard deviation of each coefficient's normal prior, {OF_BOUNDS}.", require_positive
    )
    intercept_sd: float | None = setting(None, "The same for the target at the middle of all bounds.", require_positive)
    feature_sd: float | None = setting(
        None, f"Typical standard deviation of the features, {OF_BOUNDS}.", require_positive
    )
    residual_sd: float | None = setting(
        None, f"Typical standard deviation of the residuals, {OF_BOUNDS}.", require_positive
    )

    def prior(self, bounds: Array, *, logistic: bool) -> RegressionPrior:
        """Return the prior for columns within these bounds, in units of the public ones, with the settings given."""
        numbers = given(self, [entry.name for entry in fields(RegressionPrior) if hasattr(self, entry.name)])
        return replace(RegressionPrior.within(bounds, logistic=logistic), **numbers)


class ReportJob(LearningJob):
    """A job whose clients report once, and whose posterior is sampled; a setting names the mechanism."""

    kinds = (LdpReport,)
    estimator = NOT_OF_REPORTS

    def check(self, schema: Schema, settings: Any) -> None:
        check_installed()

    def mechanism(self, settings: Any) -> str:
        return str(settings.mechanism)


def check_installed() -> None:
    """Raise `DataError` with what to install if the reports could not be fitted, before any client is asked."""
    missing = [package for name, package in _NEEDED.items() if find_spec(name) is None]
    if missing:
        raise DataError(
            "draws from the posterior given reports need NumPyro, JAX and ArviZ; missing here: "
            f"{', '.join(missing)}; {to_install('samplers')}"
        )
