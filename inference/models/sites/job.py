"""Jobs `sites-regression` and `sites-logistic`: coefficients of each data node, their mean, and how far they differ.

Each data node is a site, and releases its own noisy statistics. Of a linear regression it does so once, in half-widths
of the public bounds as in `regression-mcmc`. Of a logistic one it releases a sum for scales, and then scores at public
parameters, the same for all sites (`glm.job`). Sites differ in level and, if asked, in the effects of some features.

    method    posterior                                                              needs
    grid      normal given the spread between sites, which is integrated on a grid    nothing else
    nuts      NumPyro's sampler, with the noise at each site's own coefficients       the extra `samplers`

**Trials on one machine.** With ``site`` a column of the table names the sites: one data node for each of its codes. The
column itself is not released, and no feature. In a federation each member is a site, and the setting is left out.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Any

import numpy as np

from dca_proto.aggregate import NoisyAggregate, RoundRequest
from dca_proto.protocol.wire.kinds import Kind, NodeRelease
from dca_proto.wording import listed
from inference.columns import PRIOR_MEAN_SD, Standardisation, standardisation
from inference.draws import CHAINS, Sampling, all_private, attributes
from inference.errors import DataError
from inference.jobs.base import Conditions, LearningJob, Stage, one_round
from inference.jobs.examples import CLASS, Clean, Example
from inference.jobs.reports import SAMPLED, SamplerSettings, check_installed
from inference.jobs.settings import one_of, require_positive, rows_of_nodes, setting
from inference.laws import Draws
from inference.locate import phases_request
from inference.mcmc.run import PRIOR_DRAWS, Options, numpyro_module
from inference.models.coefficients import IDENTITY, LOGIT
from inference.models.doubts import about_data, about_separate, inseparable
from inference.models.glm.families import Bernoulli
from inference.models.glm.job import scores
from inference.models.glm.scored_fit import Scores, warnings_of
from inference.models.linear.aggregate_stats import STATISTIC, parameters_of, summed
from inference.models.linear.job import INTERCEPT_BOUND
from inference.models.linear.rows import about_boxes
from inference.models.predictive import RESIDUAL_SD
from inference.models.score_regression import Normal
from inference.models.score_rounds import ScoreSettings, rounds_of_scores, stages_of
from inference.models.sites import linear, logistic
from inference.models.sites.evidence import (
    BETWEEN,
    EFFECT,
    MEAN,
    POINTS,
    Evidence,
    Typical,
    differing,
)
from inference.models.sites.evidence import posterior as on_grid
from inference.models.sites.result import VAGUE, Units, labels_of, ordered, posterior_of, remarks_of
from inference.posterior import Posterior
from inference.problem import Array, Problem, Schema, sites_of, stream
from inference.rounds import Job

GRID, NUTS = METHODS = ("grid", "nuts")
ROUNDS = 3
DRAWS = 1_000  # of each chain, by method grid
SITES_LEAST = 2
FEW = 6  # sites below which the spread between them rests on its prior
OWN_LEAST = 0.1  # least share of a site's own data in its estimate, below which noise may hide the site
DIFFERENT = 5.0  # ln ratio of likelihoods from which a slope seems to differ between sites
MOSTLY = 4.0  # times the sampling variance from which noise is most of it
START = 0.5  # of τ, in its prior scale
TARGET = 0.9  # acceptance rate
PASSES = 8  # of Newton's method on raw rows


@dataclass(frozen=True)
class Settings(SamplerSettings):
    """Settings of `sites-regression`, and the base of the other's."""

    method: str = setting(GRID, "How to compute the posterior: grid, or nuts (NumPyro).", one_of(METHODS))
    site: str | None = setting(None, "In a trial on one machine: the column of sites, codes between its bounds.")
    slopes: str = setting(
        "",
        "Features whose effects differ between sites, too, by commas; at most one for method grid.",
        names=True,
    )
    between_sd: float = setting(
        1.0, "Scale of the half-normal prior of each sd between sites, standardised.", require_positive
    )
    mean_sd: float = setting(
        2.0, "Standard deviation of the prior of the mean of sites, standardised.", require_positive
    )
    prior_sd: float = setting(1.0, "Standard deviation of the prior of each slope, standardised.", require_positive)
    rows_max: int = rows_of_nodes()

    @property
    def names(self) -> tuple[str, ...]:
        """The features whose effects differ between sites."""
        return tuple(name.strip() for name in self.slopes.split(",") if name.strip())

    def varies(self, schema: Schema) -> tuple[bool, ...]:
        """Return which coefficients differ between sites. Raises `DataError` for a name that is no feature."""
        for name in self.names:
            if name not in schema.features:
                raise DataError(f"setting 'slopes' names {name!r}; expected features: {', '.join(schema.features)}")
        return (True, *(name in self.names for name in schema.features))

    def prior(self, schema: Schema, *, on_grid: bool = False) -> tuple[Array, Array]:
        """Return the prior standard deviations of the means, and the scales of the spreads between sites, ``(p,)``.

        Args:
            on_grid: with a spread of only so many coefficients, the first ones, as a grid takes. The sampler starts
                there, and samples all of them.
        """
        means = np.r_[self.mean_sd, np.full(len(schema.features), self.prior_sd)]
        varies = np.array(self.varies(schema), float)
        if on_grid:
            varies[np.flatnonzero(varies)[max(POINTS) :]] = 0.0
        return means, self.between_sd * varies


@dataclass(frozen=True)
class LogisticSettings(ScoreSettings, Settings):
    """Settings of `sites-logistic`."""

    rounds: int = rounds_of_scores(ROUNDS)


class SitesRegression(LearningJob):
    """Linear regression whose level, and perhaps slopes, differ between data nodes."""

    name, settings, scored = "sites-regression", Settings, False
    title = "Sites: {target} of an average row, and effects on it"
    kinds = (NodeRelease,)
    changeable = ("method", "slopes", "between_sd", "mean_sd", "prior_sd", *SAMPLED)
    estimator = "its rows belong to sites, and a table of rows alone does not have them"
    about = "[a hierarchical linear regression over hospitals](jobs/sites.md)"
    examples = (Example(),)
    clean = Clean("normal features")
    link = IDENTITY

    def check(self, schema: Schema, settings: Settings) -> None:
        inner(schema, settings)
        if settings.method == NUTS:
            check_installed()
        elif len(settings.names) > 1:
            raise DataError(f"{len(settings.names)} slopes differ between sites; take --set method=nuts")

    def contributors_least(self, schema: Schema, settings: Any, kind: type[Kind]) -> int:
        return SITES_LEAST

    @property
    def regresses(self) -> bool:
        return True

    def site_column(self, settings: Settings) -> str:
        return settings.site or ""

    def model(self, schema: Schema, settings: Settings) -> str:
        own = inner(schema, settings)
        slopes = f" and of {listed(settings.names)}" if settings.names else ""
        return f"{schema.target} on {listed(own.features) or 'nothing else'}; sites differ in level{slopes}"

    def plan(self, schema: Schema, settings: Any, conditions: Conditions) -> list[Stage]:
        return one_round("the regression of each site")

    def rounds(self, schema: Schema, settings: Settings, conditions: Conditions) -> Job[Any]:
        return self._rounds(inner(schema, settings), settings, conditions)

    def _rounds(self, schema: Schema, settings: Any, conditions: Conditions) -> Job[Any]:
        parameters = Standardisation.within_bounds(schema).parameters()
        parameters |= {"intercept": True, "intercept_bound": INTERCEPT_BOUND, "target_square": True}
        parameters["weights"] = list(conditions.weights(parameters))
        return (yield RoundRequest(STATISTIC, parameters, rows_max=settings.rows_max, kind=NodeRelease()))

    def learned(self, outcome: Any, schema: Schema, settings: Any, conditions: Conditions) -> Posterior:
        own = inner(schema, settings)
        return self._of(outcome, own, settings, conditions)

    def _of(self, aggregate: NoisyAggregate, schema: Schema, settings: Settings, conditions: Conditions) -> Posterior:
        nodes = ordered(aggregate.nodes, conditions.sites)
        require_sites(len(nodes))
        released, parameters = linear.released_by(nodes), parameters_of(nodes[0])
        found = linear.fitted(released, *settings.prior(schema, on_grid=True))
        columns = Standardisation.of(parameters)
        sd = PRIOR_MEAN_SD * columns.bound * columns.scale
        middle = columns.centre[:-1] - released.frame[0, 1:] * sd[:-1]
        units = Units(columns, IDENTITY, float(sd[-1]), float(columns.centre[-1]), middle, sd[:-1])
        noiseless = found.variance / np.maximum(released.rows, 1.0)
        fit = Fit(nodes, units, schema, settings, conditions)
        notes = about_boxes(summed(nodes), parameters)
        return fit.posterior([aggregate], found.posterior, released, noiseless, notes, variance=found.variance)

    def reference(self, train: Problem, settings: Settings) -> Posterior | None:
        """Fit the same model without noise to rows whose sites a column names; None without such a column.

        Raises:
            DataError: fewer than two sites have enough complete rows.
        """
        if settings.site is None:
            return None
        parts = {label: train.take(places).complete for label, places in sites_of(train, settings.site).items()}
        schema = inner(train.schema, settings)
        least = len(schema.features) + 2
        tables = {label: part.values(*schema.columns).reshape(-1, len(schema.columns))
                  for label, part in parts.items() if len(part.y) >= least}  # fmt: skip
        require_sites(len(tables))
        return self._exact(tables, schema, settings)

    def _exact(self, tables: Mapping[str, Array], schema: Schema, settings: Settings) -> Posterior:
        every = np.concatenate(list(tables.values()))
        centre, scale = standardisation(every)
        sd = schema.half_widths * PRIOR_MEAN_SD
        if self.link == LOGIT:
            sd = np.r_[scale[:-1], 1.0]
        rows = [np.c_[np.ones(len(table)), (table[:, :-1] - centre[:-1]) / sd[:-1]] for table in tables.values()]
        mean_sd, tau_sd = settings.prior(schema)
        shift = schema.centres[-1] if self.link == IDENTITY else 0.0
        targets = [(table[:, -1] - shift) / sd[-1] for table in tables.values()]
        evidence = self._exact_evidence(rows, targets, mean_sd, tau_sd, schema)
        columns = Standardisation(schema.columns, np.r_[centre[:-1], shift], sd, np.full(len(sd), inf))
        units = Units(columns, self.link, float(sd[-1]), float(shift), centre[:-1], sd[:-1])
        rng = stream(0, "reference")
        draws = on_grid(evidence, mean_sd, tau_sd).sample(rng, CHAINS, DRAWS)
        prior = prior_draws(mean_sd, tau_sd, rng)
        known: dict[str, Any] = {"schema": schema, "rng": rng, "prior": prior, "alone": evidence}
        return posterior_of(draws, units, tuple(tables), settings.varies(schema), private=False, **known)

    def _exact_evidence(
        self, rows: list[Array], targets: list[Array], mean_sd: Array, tau_sd: Array, schema: Schema
    ) -> Evidence:
        left = [y - x @ np.linalg.lstsq(x, y, rcond=None)[0] for x, y in zip(rows, targets, strict=True)]
        degrees = sum(len(one) for one in left) - sum(np.linalg.matrix_rank(x) for x in rows)
        variance = sum(float(one @ one) for one in left) / max(degrees, 1)
        h = np.array([x.T @ y for x, y in zip(rows, targets, strict=True)])
        return Evidence(h / variance, np.array([x.T @ x for x in rows]) / variance)


class SitesLogistic(SitesRegression):
    """Logistic regression whose level, and perhaps slopes, differ between data nodes."""

    name, settings = "sites-logistic", LogisticSettings
    title = "Sites: log odds of {target} of an average row, and effects on them"
    about = "[a hierarchical logistic regression over hospitals](jobs/sites.md)"
    examples = (Example(CLASS, {"rounds": 2}),)
    clean = Clean(CLASS)
    link, of_two = LOGIT, True

    def plan(self, schema: Schema, settings: Any, conditions: Conditions) -> list[Stage]:
        return stages_of(settings.rounds, settings.std_share)

    def _rounds(self, schema: Schema, settings: LogisticSettings, conditions: Conditions) -> Job[Any]:
        def asked() -> Job[tuple[NoisyAggregate, ...]]:
            phases = yield phases_request(schema, settings.std_share, schema.columns)
            asking = scores(phases, schema, Bernoulli(), settings.rounds, settings.std_share, about_mean)
            return (yield from asking)

        def about_mean(sums: Scores) -> Normal:
            """Return the mean of sites: one φ for all rows is too small if sites differ."""
            released = logistic.released_by(sums, logistic.matched(sums.rounds))
            return _whole(logistic.fitted(released, *settings.prior(schema, on_grid=True)).typical())

        return by_nodes(asked(), settings.rows_max)

    def _of(  # type: ignore[override]
        self, rounds: Sequence[NoisyAggregate], schema: Schema, settings: Settings, conditions: Conditions
    ) -> Posterior:
        sums = Scores.of(rounds)
        nodes = [ordered(one, conditions.sites) for one in logistic.matched(sums.rounds)]
        released = logistic.released_by(sums, nodes)
        found = logistic.fitted(released, *settings.prior(schema, on_grid=True))
        columns = sums.columns
        units = Units(columns, LOGIT, 1.0, 0.0, columns.centre[:-1], columns.scale[:-1])
        sampling = 1 / np.maximum(released.n * released.information[0, 0], 1.0)
        left_out = max(len(one.nodes) for one in sums.rounds) - len(nodes[0])
        notes = [f"{left_out} sites did not release in all rounds, and are left out"] if left_out else []
        whole = _whole(found.typical())
        notes += [*about_data(sums.missing, rounds), *warnings_of(sums, whole)]
        notes += logistic.about_sites(released, found.typical().effect, labels_of(nodes[0], conditions.sites))
        fit = Fit(nodes[0], units, schema, settings, conditions)
        return fit.posterior(rounds, found, released, sampling, tuple(notes))

    def _exact_evidence(
        self, rows: list[Array], targets: list[Array], mean_sd: Array, tau_sd: Array, schema: Schema
    ) -> Evidence:
        upper = schema.bounds[schema.target].centre
        b = np.zeros((len(rows), rows[0].shape[1]))
        for _ in range(PASSES):
            h, precision = np.zeros_like(b), np.zeros((*b.shape, b.shape[1]))
            for j, (x, y) in enumerate(zip(rows, targets, strict=True)):
                odds = 1 / (1 + np.exp(-x @ b[j]))
                precision[j] = (x * (odds * (1 - odds))[:, None]).T @ x
                h[j] = x.T @ ((y > upper) - odds) + precision[j] @ b[j]
            evidence = Evidence(h, precision)
            b = on_grid(evidence, mean_sd, tau_sd).typical().effect
        return evidence


def _whole(typical: Typical) -> Normal:
    """Return the mean of sites as φ of the rounds of scores, whose last coordinate two classes do not have."""
    return Normal(np.r_[typical.mean, 0.0], np.pad(typical.cov, (0, 1)))


@dataclass(frozen=True)
class Fit:
    """A fit to releases: the sites, their units, and what the job was asked for."""

    nodes: Sequence[NoisyAggregate]
    units: Units
    schema: Schema
    settings: Settings
    conditions: Conditions

    def posterior(
        self,
        rounds: Sequence[NoisyAggregate],
        found: Any,
        released: Any,
        sampling_variance: Array,
        notes: Sequence[str],
        *,
        variance: float | None = None,
    ) -> Posterior:
        """Return the posterior by the chosen method, with warnings.

        Args:
            found: the posterior on the grid. released: the likelihood's data. sampling_variance: of each site's level
                without noise. variance: σ² of the grid, if targets are numbers.
        """
        settings, rng = self.settings, self.conditions.rng
        mean_sd, tau_sd = settings.prior(self.schema)
        varies, sampling = settings.varies(self.schema), None
        labels = labels_of(self.nodes, self.conditions.sites)
        if settings.method == NUTS:
            draws, sampling = self._sampled(released, mean_sd, tau_sd, varies, found.typical().mean)
        else:
            draws = dict(found.sample(rng, CHAINS, DRAWS))
            if variance is not None:
                rows = float(np.sum(released.rows))
                spread = sqrt(1 / (2 * max(rows, 1.0)))
                draws[RESIDUAL_SD] = sqrt(variance) * np.exp(spread * rng.standard_normal((CHAINS, DRAWS)))
        result = posterior_of(
            draws,
            self.units,
            labels,
            varies,
            schema=self.schema,
            rng=rng,
            prior=prior_draws(mean_sd, tau_sd, rng),
            alone=found.evidence,
            sampling=sampling,
            notes=(*notes, *self._doubts(found, sampling_variance, labels)),
            remarks=remarks_of(found.evidence, varies, self.units, released.average),
            average=released.average,
            attrs=attributes(*rounds, schema=self.schema),
            private=all_private(rounds, self.schema),
        )
        is_sampled = settings.method == NUTS and settings.require_mixed
        return result.require_mixed() if is_sampled else result

    def _sampled(
        self, released: Any, mean_sd: Array, tau_sd: Array, varies: tuple[bool, ...], mean: Array
    ) -> tuple[Draws, Sampling]:
        model = numpyro_module("inference.models.sites.model").SitesModel(self.units.link == LOGIT, varies)
        start = {"x_mean": mean / mean_sd, "x_tau": np.full(sum(varies), START)}
        data = {"released": released, "mean_sd": mean_sd, "tau_sd": tau_sd}
        run = Options(**self.settings.run(self.conditions))
        sampled = run.sample(model, data, start, target=TARGET, keep=(MEAN, BETWEEN, EFFECT, RESIDUAL_SD))
        return sampled.draws, sampled.sampling

    def _doubts(self, found: Any, sampling_variance: Array, labels: Sequence[str]) -> list[str]:
        typical, evidence, notes = found.typical(), found.evidence, []
        mean_sd, _ = self.settings.prior(self.schema)
        if len(labels) < FEW:
            notes.append(
                f"{len(labels)} sites say little of how much sites differ, so the sd between sites, a new site and the "
                "shrinkage rest on the prior; see if they hold with twice and half of between_sd"
            )
        own = 1 / (evidence.precision[:, 0, 0] + VAGUE**-2)
        share = typical.tau[0] ** 2 / (typical.tau[0] ** 2 + own)
        hidden = (share < OWN_LEAST) & (own > MOSTLY * sampling_variance)
        if hidden.any():
            names = [label for label, one in zip(labels, hidden, strict=True) if one]
            notes.append(
                f"noise hides {listed(names)}: estimates there are those of the other sites, and say nothing of these "
                "themselves; give a larger epsilon, or ask for more rows there"
            )
        ratios = differing(evidence, typical.tau, mean_sd)[1:]
        differ = {
            name: ratio
            for name, ratio in zip(self.schema.features, ratios, strict=True)
            if ratio > DIFFERENT and name not in self.settings.names
        }
        if differ:
            notes.append(
                f"the effect of {listed(list(differ))} seems to differ between sites, so intervals are too narrow; "
                f"give --set slopes={max(differ, key=differ.__getitem__)}"
            )
        if not any("separate effects" in note for note in notes) and self.units.link == IDENTITY:
            features = self.schema.features
            if mixed := inseparable(features, typical.cov[1:, 1:]) if len(features) > 1 else []:
                notes.append(about_separate(mixed, "only predictions are sure"))
        return notes


def inner(schema: Schema, settings: Settings) -> Schema:
    """Return the schema of what is released: without the column of sites. Raises `DataError` if it is the target."""
    if settings.site is not None:
        schema.column(settings.site)
        if settings.site == schema.target:
            raise DataError(f"column {settings.site!r} is both the target and the site; name two columns")
    features = tuple(name for name in schema.features if name != settings.site)
    bounds = {name: ends for name, ends in schema.bounds.items() if name != settings.site}
    own = replace(schema, features=features, bounds=bounds, alone=True)
    settings.varies(own)
    return own


def require_sites(count: int) -> None:
    """Refuse fewer sites than a model of sites needs. Raises `DataError`."""
    if count < SITES_LEAST:
        raise DataError(f"{count} site; a model of sites needs two data nodes or more, better ten")


def prior_draws(mean_sd: Array, tau_sd: Array, rng: np.random.Generator) -> dict[str, Array]:
    """Draw the means and the spreads between sites from their prior."""
    mean = mean_sd * rng.standard_normal((PRIOR_DRAWS, len(mean_sd)))
    scales = tau_sd[tau_sd > 0]
    return {MEAN: mean, BETWEEN: np.abs(scales * rng.standard_normal((PRIOR_DRAWS, len(scales))))}


def by_nodes(job: Job[Any], rows_max: int) -> Generator[RoundRequest, NoisyAggregate, Any]:
    """Run a job's rounds as node releases of all rows."""
    answer = None
    while True:
        try:
            request = next(job) if answer is None else job.send(answer)
        except StopIteration as done:
            return done.value
        answer = yield replace(request, kind=NodeRelease(), rows_max=rows_max)
