"""Checks the settings of a learning job: `[job]` of a trainer's file, and the options that override it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Meta
from msgspec.structs import asdict

from dca_proto.cli.options import completing
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import UsageError
from dca_proto.jobs.forecast import EXACT
from dca_proto.jobs.job import FRACTION_BITS, JobTerms
from dca_proto.jobs.runner import RETRIES
from dca_proto.privacy.accounting import DELTA
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.privacy.mechanism import PURE_MECHANISMS, Mechanism
from dca_proto.protocol.federation import Federation
from dca_proto.protocol.ledger import Ledger
from dca_proto.protocol.params import Limits
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.terms import ComputeNames, Delta, LiveTerms, Windows, check_kind
from dca_proto.protocol.validation import ValidatedRound
from dca_proto.protocol.wire.kinds import KINDS, Kind, NodeRelease, SecureSum, name_of
from dca_proto.protocol.wire.messages import Announcement
from dca_proto.runtime.request import compute_ids
from dca_proto.runtime.settings import convert
from dca_proto.statistics import resolve
from dca_proto.statistics.regression import Regression
from dca_proto.statistics.weights import best_regression_weights
from dca_proto.wording import JsonObject, listed, nearest
from inference.bounds import Interval, as_interval
from inference.errors import DataError
from inference.jobs import NAMES, find, require_kind
from inference.jobs.base import LearningJob, Stage, share_words
from inference.jobs.settings import described, settings_from
from inference.problem import Schema
from inference.rounds import Job


class JobSettings(LiveTerms[ComputeNames], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings that all jobs have; a job's own settings are further keys of the same table.

    Attributes:
        name: the job. features, target: columns of the clients' data.
        bounds: public lower and upper bound of each column, in its own units; of a column of texts its labels, in the
            order of the clients' files. units: by column, for display.
        epsilon, delta: the cost of all rounds together to each participant. A job on epsilon-private reports spends no
            delta and may leave it out.
        kind: by default, it follows from the job and from whether there are Compute nodes.
        clients: a round ends as soon as all have answered.
        invite: for a job that begins with a mini-batch.
    """

    name: str = NAMES[0]
    features: tuple[str, ...] = ()
    target: str
    bounds: dict[str, tuple[float | str, ...]]
    units: dict[str, str] = msgspec.field(default_factory=dict)
    delta: Delta = 0.0
    computes: ComputeNames = ()
    retries: Annotated[int, Meta(ge=0, le=1_000, description="How often an aborted round is retried.")] = RETRIES
    seed: Annotated[int, Meta(description="Seed of auxiliary data and draws; never of keys or noise.")] = 0
    kind: Annotated[str, Meta(description=f"Kind of the rounds, if the job has a choice: {', '.join(KINDS)}.")] = ""
    invite: Annotated[str, Meta(description="Folder of certificates of clients, to pick mini-batches from.")] = ""


JobName = Annotated[
    str | None,
    typer.Option(
        "--job",
        help=f"Job: {', '.join(NAMES)}. (poisson and exponential take the spread from the mean; gaussian learns both.)",
        autocompletion=completing(NAMES),
    ),
]
Draft = tuple[Announcement, ValidatedRound]
_FREE = ("units", *Windows.__struct_fields__, "retries", "invite")
_NEEDED = ("target", "bounds", "epsilon", "delta", "clients")
TERMS = tuple(field.name for field in msgspec.structs.fields(JobSettings))


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A job with its checked settings.

    Attributes:
        job, own: the job and its own settings. settings: the common ones.
        schema: the columns. terms: of all rounds. table: all settings as plain values.
        kind: of the rounds. reports: the mechanism of LDP reports; "" for other kinds.
    """

    job: LearningJob
    own: Any
    settings: JobSettings
    schema: Schema
    terms: JobTerms
    table: JsonObject
    kind: type[Kind] = SecureSum
    reports: str = ""

    @property
    def delta(self) -> float:
        """The delta that the rounds spend: 0 if reports are epsilon-private."""
        return 0.0 if self.reports in PURE_MECHANISMS else self.terms.budget.delta

    @property
    def cost(self) -> PrivacyCost:
        """The cost of all rounds together to each participant."""
        budget = self.terms.budget
        return PrivacyCost.of_pure(budget.epsilon) if self.reports in PURE_MECHANISMS else budget.cost

    @property
    def free(self) -> tuple[str, ...]:
        """Names of settings that may change when the job is resumed: they change neither the sums nor their cost."""
        return (*_FREE, *self.job.changeable)

    @property
    def identity(self) -> JsonObject:
        """The settings that must be the same when the job is resumed: all that are not `free`."""
        return {key: value for key, value in self.table.items() if key not in self.free}


def task_of(table: Mapping[str, Any], federation: Federation) -> Task:
    """Check a table of settings and return its task.

    Raises `UsageError` for an unknown key (it names the nearest one), a missing key or an invalid value; `DataError`
    for the same in the job's own settings, or in columns and bounds.
    """
    job = find(_name(table))
    if job.whole and table.get("target") is None and table.get("bounds"):
        table = {**table, "target": [*table["bounds"]][-1]}
    own_keys = [name for name, _, _ in described(job.settings)]
    for key in table:
        if key not in TERMS and key not in own_keys:
            known = (*TERMS, *own_keys)
            raise UsageError(f"job: unknown key {key!r}{nearest(key, known)}; known: {', '.join(known)}")
    own = settings_from(job.settings, {key: value for key, value in table.items() if key not in TERMS}, job.name)
    reports = job.mechanism(own)
    pure = reports in PURE_MECHANISMS
    missing = [name for name in _NEEDED if table.get(name) is None and not (name == "delta" and pure)]
    if missing:
        options = ", ".join(f"--{name}" for name in missing)
        raise UsageError(f"job: {', '.join(missing)} missing; give them in [job] of the file, or {options}")
    settings = convert("job:", {key: value for key, value in table.items() if key in TERMS}, JobSettings)
    kind = _kind(settings, job, federation)
    settings.check_terms("job: ", is_summed=kind is SecureSum, batch=job.batch(own))
    bounds = {column: _interval(column, limits) for column, limits in settings.bounds.items()}
    features = settings.features or tuple(column for column in bounds if column != settings.target)
    if not job.scored:  # the job describes one column; the file may list a regression's others
        features = tuple(column for column in features if column in bounds)
    schema = job.read(Schema(features, settings.target, bounds, settings.units, alone=not job.scored), own)
    job.check(schema, own)
    table = {**asdict(settings), **{key: getattr(own, key) for key in own_keys}, "kind": name_of(kind)}
    if pure:
        table["delta"] = 0.0  # a delta in the settings is not spent
    return Task(
        job=job,
        own=own,
        settings=settings,
        schema=schema,
        terms=_terms(settings, federation, kind, pure=pure),
        table=msgspec.json.decode(msgspec.json.encode(table)),
        kind=kind,
        reports=reports,
    )


def _interval(column: str, limits: tuple[float | str, ...]) -> Interval:
    try:
        return as_interval(column, limits)
    except DataError as error:
        raise UsageError(f"job: {error}") from None


def _name(table: Mapping[str, Any]) -> str:
    name = table.get("name", NAMES[0])
    if not isinstance(name, str):
        raise UsageError(f"job: name is {name!r}, expected a text, such as {NAMES[0]!r}")
    return name


def _kind(settings: JobSettings, job: LearningJob, federation: Federation) -> type[Kind]:
    """Return the kind of the job's rounds: the requested one, or the first that the federation supports."""
    if settings.kind:
        kind = check_kind(settings.kind)
    elif federation.computes or SecureSum not in job.kinds:
        kind = job.kinds[0]
    else:
        kind = NodeRelease
    require_kind(job, kind)
    return kind


def _terms(settings: JobSettings, federation: Federation, kind: type[Kind], *, pure: bool) -> JobTerms:
    computes = compute_ids(settings.computes, federation) if kind is SecureSum else ()
    own = {"computes": computes, "delta": DELTA if pure else settings.delta}
    return JobTerms(**{**settings.shared(JobTerms), **own})


def best_weights(parameters: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the weights of the blocks of the statistic "regression" that give the least total error."""
    statistic = resolve("regression", dict(parameters))
    assert isinstance(statistic, Regression), "registered under that name"
    return best_regression_weights(statistic, FRACTION_BITS)


def check_plan(
    job: Job[Any], stages: Sequence[Stage], terms: JobTerms, claim: str, mechanism: Mechanism = EXACT
) -> list[Draft]:
    """Plan the job's first round with each stage's share of the budget, as its participants will.

    Args:
        job: not yet started. claim: the budget in words, for errors. mechanism: every actor's.

    Returns the draft for each stage. Raises `UsageError` if no round is possible with a share.
    """
    first, drafts = next(job), []
    for stage in stages:
        try:
            request = replace(first, budget_share=stage.share)
            batch = tuple(place.to_bytes(ID_BYTES, "big") for place in range(stage.batch))
            drafts.append(terms.open(request, bytes(ID_BYTES), batch).draft(mechanism, Limits()))
        except UsageError as error:
            share = share_words(stage.share)
            raise UsageError(f"{claim}: no round is possible with {share} of that: {error}") from None
    return drafts


def beyond_default_limits(drafts: Sequence[Draft], cost: PrivacyCost) -> list[str]:
    """Return the terms at which a client with the default limits would decline, once for each limit.

    Data nodes are assumed to set `rows_of_many`.

    Args:
        drafts: as `check_plan` returns them. cost: of the whole job.
    """
    policy = Policy(rows_of_many=True)
    refusals = [refusal for draft in drafts for refusal in policy.refusals(*draft, frozenset())]
    if over_budget := policy.check_budget(cost, Ledger(), 0):
        refusals.append(over_budget)
    found: dict[tuple[str, str], list[str]] = {}
    for refusal in refusals:
        found.setdefault((refusal.reason, refusal.expected), []).append(refusal.found)
    return [
        f"{reason} {listed(list(dict.fromkeys(asked)))} (by default {accepted})"
        for (reason, accepted), asked in found.items()
    ]
