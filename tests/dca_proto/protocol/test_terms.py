"""The terms of a round stand in one record: every layer has its fields, ranges, meanings and check.

Everything is deterministic: no test here has a chance of a false alarm.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from dca_proto.cli.job_settings import JobSettings
from dca_proto.errors import UsageError
from dca_proto.jobs.job import JobTerms
from dca_proto.jobs.plan import JobPlan
from dca_proto.protocol.terms import ComputeCount, Terms, Windows, check_sum, description_of
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease, SecureSum, VerifiedSum
from dca_proto.runtime.request import RoundSettings
from emulator.claim import Claim
from emulator.swarm.options import SwarmOptions
from emulator.trials.scenario import Rounds

LAYERS: tuple[type[msgspec.Struct], ...] = (
    RoundSettings, JobSettings, JobTerms, JobPlan, SwarmOptions, Claim, Rounds,
)  # fmt: skip
PLAIN: dict[str, Any] = {"clients": 20, "tolerate": 4, "colluders": 1, "computes": 3, "epsilon": 1.0, "delta": 1e-6}


def terms(**changes: Any) -> Terms[int]:
    return Terms[ComputeCount](**{**PLAIN, **changes})


@pytest.mark.parametrize("layer", LAYERS)
def test_each_layer_has_all_terms(layer: type[msgspec.Struct]) -> None:
    assert issubclass(layer, Terms)
    assert {*Terms.__struct_fields__} <= {*layer.__struct_fields__}


def test_the_trainers_command_has_all_windows() -> None:
    assert {*Windows.__struct_fields__} <= {*OpenRound.__struct_fields__}


@pytest.mark.parametrize("layer", [RoundSettings, JobSettings, JobPlan, SwarmOptions])
def test_each_term_has_a_meaning_for_the_help_of_its_option(layer: type[msgspec.Struct]) -> None:
    for field in msgspec.structs.fields(layer):
        assert field.name not in Terms.__struct_fields__ or description_of(field.type), field.name


def test_every_value_reaches_the_command_and_the_kind_of_the_round() -> None:
    windows = {name: 2.5 + place for place, name in enumerate(Windows.__struct_fields__)}
    job = JobTerms(**{**PLAIN, "computes": (b"a" * 16, b"b" * 16), "window_s": 60, **windows})
    shared = job.shared(OpenRound)
    assert shared == {
        **windows, "computes": (b"a" * 16, b"b" * 16), "epsilon": 1.0, "delta": 1e-6, "window_s": 60,
    }  # fmt: skip
    assert (windows["collect_s"], windows["commit_s"]) == (2.5, 3.5)
    assert (job.collect_ms, job.commit_ms) == (2500, 3500)
    assert job.fill(SecureSum("m", most=7)) == SecureSum("m", 20, 4, 1, 7)
    assert (job.fill(NodeRelease("m")), job.fill(LdpReport("m"))) == (NodeRelease("m", 20), LdpReport("m", 20))


def test_verified_terms_make_a_secure_sum_a_verified_one_and_refuse_other_kinds() -> None:
    job = JobTerms(**{**PLAIN, "computes": (b"a" * 16, b"b" * 16)}, verified=True)
    assert job.fill(SecureSum("m", most=7)) == VerifiedSum("m", 20, 4, 1, 7)
    assert job.fill(LdpReport("m")) == LdpReport("m", 20)
    assert (job.n_min, job.honest, job.in_batch(10).verified) == (17, 15, True)
    assert 0 < job.budget.slack < 1e-13
    alone = {"tolerate": 0, "colluders": 0, "computes": ()}
    with pytest.raises(UsageError, match="rounds of this kind cannot be verified"):
        msgspec.structs.replace(job, **alone).check_terms(is_summed=False)


def test_n_min_and_honest_are_those_of_the_announced_kind() -> None:
    assert (terms().n_min, terms().honest) == (17, 15)
    assert (terms().n_min, terms().honest) == (terms().secure_sum.n_min, terms().secure_sum.honest)
    batch = terms().in_batch(10)
    assert (batch.clients, batch.tolerate, batch.colluders) == (10, 3, 1), "c + (T - c) B/N, rounded up"


@pytest.mark.parametrize(
    ("changes", "asked", "message"),
    [
        ({"clients": 0}, {}, "clients is 0; give their number N"),
        ({"clients": -1}, {"needs_n": False}, "clients is -1; give a number from 0 to 10000000"),
        ({"tolerate": -1}, {}, "tolerate is -1"),
        ({"colluders": 5}, {}, "c = 5 colluders exceed T = 4; lower colluders to 4, or raise tolerate to 5"),
        ({"clients": 0, "colluders": 5}, {"needs_n": False}, "c = 5 colluders exceed T = 4"),
        (
            {"tolerate": 19},
            {},
            "N - T - 1 = 20 - 19 - 1 is below 1.* lower tolerate to at most 18, or find at least 21",
        ),
        ({"computes": 1}, {}, "M = 1 Compute nodes; use 2 to 64"),
        ({}, {"is_summed": False}, "rounds of this kind have no Compute nodes"),
        ({}, {"batch": 3}, "a batch of 3 clients, of which 2 may drop out, leaves no honest noise"),
        ({"collect_s": 0.0}, {}, "collect_s is 0; give a number from 0.001 to 2592000"),
        ({"commit_s": math.nan}, {}, "commit_s is nan"),
        ({"wait_s": 14.0}, {}, "wait_s is 14; give 0, or a number from 15 on"),
        ({"wait_s": -1.0}, {}, "wait_s is -1; give a number from 0 to"),
    ],
)
def test_terms_that_no_round_can_have_are_refused(changes: dict[str, Any], asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^here: {message}"):
        terms(**changes).check_terms("here: ", **asked)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 1e12, -1.0])
def test_a_record_that_states_a_lower_limit_anew_keeps_the_upper_one(seconds: float) -> None:
    """A window of a swarm may be 0, which stands for one by its size."""
    plain = SwarmOptions(**PLAIN)
    plain.check_terms()
    with pytest.raises(UsageError, match=r"^collect_s is .*; give a number from 0 to 2592000$"):
        msgspec.structs.replace(plain, collect_s=seconds).check_terms()


def test_terms_that_a_round_can_have_pass() -> None:
    terms().check_terms(batch=5)
    terms(clients=0).check_terms(needs_n=False)
    terms(tolerate=0, colluders=0, computes=0).check_terms(is_summed=False)


def test_an_announcement_always_states_n() -> None:
    """A trainer may not know N yet; a participant must refuse an announcement that lacks it."""
    with pytest.raises(UsageError, match="below 1: no honest noise"):
        check_sum(SecureSum("m"), 3)
