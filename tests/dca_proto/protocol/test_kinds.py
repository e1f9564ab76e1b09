"""The three kinds of rounds: each one's own terms, consent, price, noise and protection; and μ against (ε, δ)."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import msgspec
import pytest
from round_helpers import with_fields

from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
from dca_proto.privacy.accounting import check_mu
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian
from dca_proto.protocol.ledger import Ledger
from dca_proto.protocol.params import Limits
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.validation import ValidatedRound, validate_announcement
from dca_proto.protocol.wire.kinds import LdpReport, NodeRelease, SecureSum, name_of
from dca_proto.protocol.wire.messages import Announcement, Signed
from dca_proto.testing import NoNoise

EXACT = DistributedDiscreteGaussian()
TWO = (Signed(b"", bytes(64)),) * 2
QUESTION = {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [1.0]}
BINS = {"columns": ["x"], "edges": [0.0, 1.0, 2.0, 3.0]}
MU = accounting.mu_of(1.0, 1e-6)
SUM = SecureSum(EXACT.name, 20, 3, 3)
RELEASE = NodeRelease(EXACT.name)
OPEN = Policy(clients_min=1, honest_min=1, delta_max=1e-6)


def announcement(kind: Any = SUM, **changes: Any) -> Announcement:
    plain = Announcement(
        bytes(16), bytes(16), 1, bytes(32), "sum", QUESTION, 1, 24, MU, 1.0, 1e-6, kind,
        TWO if kind.is_summed else (), bytes(32), b"", 1, 2,
    )  # fmt: skip
    return with_fields(plain, **changes)


def sum_of(n_min: int, colluders: int, **changes: Any) -> SecureSum:
    """A secure sum of at least so many contributions: all that may drop out are colluders."""
    return SecureSum(EXACT.name, n_min, colluders, colluders, **changes)


def validated(kind: Any = SUM, **changes: Any) -> ValidatedRound:
    return validate_announcement(announcement(kind, **changes), EXACT, Limits())


def declined(policy: Policy, kind: Any, missing: frozenset[str] = frozenset(), **changes: Any) -> str | None:
    asked = announcement(kind, **changes)
    refused = policy.check_announcement(asked, validate_announcement(asked, EXACT, Limits()), missing)
    return refused.reason if refused else None


def report(name: str, **changes: Any) -> dict[str, Any]:
    """An LDP report of a histogram at ε = 1 by one of the mechanisms that are private by ε alone."""
    mu = accounting.mu_of_pure(changes.get("epsilon", 1.0))
    return {"statistic": "histogram", "parameters": BINS, "mechanism": name, "delta": 0.0, "mu": mu, **changes}


# Noise


def variance_of(mu: float, delta: float, honest: int) -> int:
    """§6, with fractions of mpmath: ⌈((1 + 10⁻⁹) Δ²/μ² + 9)/honest⌉, Δ in grid units, to one unit of rounding."""
    with mpmath.workdps(40):
        return int(mpmath.ceil(((1 + mpmath.mpf("1e-9")) * mpmath.mpf(delta) ** 2 / mpmath.mpf(mu) ** 2 + 9) / honest))


@pytest.mark.parametrize(("n_min", "colluders"), [(2, 0), (20, 3), (20, 18), (1000, 100)])
@pytest.mark.parametrize("part", [1.0, 0.5, 1e-3])
def test_a_secure_sums_share_is_for_the_honest_ones_and_for_the_announced_mu(
    n_min: int, colluders: int, part: float
) -> None:
    """A trainer that announces less μ than (ε, δ) allow gets the noise of that μ, and the client pays for that μ."""
    found = validated(sum_of(n_min, colluders), mu=MU * part)
    assert found.honest == n_min - 1 - colluders
    expected = variance_of(MU * part, found.sensitivity.l2, found.honest)
    assert abs(found.noise_variance - expected) <= max(1, expected * 1e-12)
    assert found.mu == found.cost.mu == pytest.approx(MU * part, rel=1e-15)


def test_a_data_node_adds_all_of_the_noise_for_one_row() -> None:
    found = validated(RELEASE, rows_max=5)
    assert (found.honest, found.sensitivity.relation) == (1, "replace-one-row")
    assert found.sensitivity_l2 == pytest.approx(2.0, rel=1e-6), "one row, not five"
    expected = variance_of(MU, found.sensitivity.l2, 1)
    assert abs(found.noise_variance - expected) <= max(1, expected * 1e-12)


def test_a_secure_sum_and_a_report_protect_all_of_a_client() -> None:
    for found in (validated(rows_max=5), validated(LdpReport(), rows_max=5, mechanism="analytic-gaussian")):
        assert found.sensitivity.relation == "replace-one-client"
        assert found.sensitivity_l2 == pytest.approx(10.0, rel=1e-6), "five rows within [-1, 1]"


def test_a_report_brings_its_mechanism_and_the_noise_of_it() -> None:
    for name, pure in (("analytic-gaussian", False), ("grid-laplace", True), ("randomised-response", True),
                       ("unary-encoding", True)):  # fmt: skip
        changes = report(name) if pure else {"mechanism": name}
        found = validated(LdpReport(), **changes)
        assert found.report is not None
        assert (found.report.name, found.report.epsilon, found.report.delta) == (name, 1.0, 0.0 if pure else 1e-6)
        assert found.noise_variance * found.unit**2 >= found.report.variance_in_sum(found.unit)
    assert validated().report is None
    assert validated(RELEASE).report is None


@pytest.mark.parametrize("part", [1.0, 0.5, 1e-3])
def test_attack_a_report_that_is_charged_less_has_more_noise(part: float) -> None:
    """A trainer that announces a small μ beside a generous (ε, δ) must not get a report of (ε, δ) for it."""
    found = validated(LdpReport(), mechanism="analytic-gaussian", mu=MU * part)
    assert found.report is not None
    assert found.mu == pytest.approx(MU * part, rel=1e-15)
    expected = variance_of(MU * part, found.sensitivity.l2, 1)
    assert abs(found.report.noise_variance - expected) <= max(1, expected * 1e-12)  # type: ignore[attr-defined]
    assert abs(found.noise_variance - expected) <= max(1, expected * 1e-12)


# Terms


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        (SUM, {"epochs": TWO[:1]}, r"M = 1 Compute nodes; use 2 to 64"),
        (SUM, {"epochs": TWO[:1] * 65}, r"M = 65 Compute nodes; use 2 to 64"),
        (SUM, {"epochs": ()}, r"M = 0 Compute nodes; use 2 to 64"),
        (RELEASE, {"epochs": TWO}, r"M = 2 Compute nodes in a round of a kind that has none"),
        (LdpReport("analytic-gaussian"), {"epochs": TWO}, r"M = 2 Compute nodes in a round of a kind that has none"),
        (sum_of(20, 19), {}, r"N - T - 1 = 20 - 19 - 1 is below 1"),
        (sum_of(0, 0), {}, r"N - T - 1 = 0 - 0 - 1 is below 1"),
        (SecureSum(EXACT.name, 20, 3, 4), {}, r"c = 4 colluders exceed T = 3"),
        (sum_of(20, 3, most=19), {}, r"n_max = 19 is below n_min = 20"),
        (sum_of(20, 3, most=2**32 - 1), {"parameters": {**QUESTION, "bound": [2.0**14]}}, r"2\^63"),
    ],
)
def test_terms_that_cannot_be(kind: Any, changes: dict[str, Any], words: str) -> None:
    """The last: so many contributions of up to 2^38 grid units do not fit into the ring."""
    with pytest.raises(UsageError, match=words):
        validated(kind, **changes)
    assert validated(sum_of(20, 18, most=20)).honest == 1


def test_what_n_t_and_c_make_of_a_secure_sum() -> None:
    """DCA, Theorem 1, with c colluders: n_min = N - T + c contributions, of which n_min - 1 - c noises are unknown."""
    kind = SecureSum(EXACT.name, 30, 5, 2)
    assert (kind.n_min, kind.n_max, kind.honest) == (27, 60, 24)
    assert msgspec.structs.replace(kind, most=28).n_max == 28
    assert [(one.n_min, one.colluders, one.honest) for one in (RELEASE, LdpReport())] == [(0, 0, 1)] * 2


def test_the_ring_holds_n_max_contributions_and_not_one_more() -> None:
    """By the bound of DESIGN §4.3: n_max (C + noise) below 2^63, found here by bisection of the refusals."""
    wide = {"parameters": {**QUESTION, "bound": [2.0**14]}}

    def fits(most: int) -> bool:
        try:
            validated(sum_of(20, 3, most=most), **wide)
        except UsageError:
            return False
        return True

    low, high = 20, 2**32 - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    bound = validated(**wide).sensitivity.bound
    assert 0.9 * 2**63 < low * bound < 2**63


def test_kinds_offer_their_own_mechanisms_only() -> None:
    for kind in (SUM, RELEASE):
        for name in ("analytic-gaussian", "grid-laplace", NoNoise.name):
            with pytest.raises(UsageError, match=f"mechanism '{name}' is not offered here"):
                validated(kind, mechanism=name)
    with pytest.raises(UsageError, match="makes no reports; use one of analytic-gaussian"):
        validated(LdpReport())


def test_a_statistic_that_is_too_long_or_unknown_is_refused() -> None:
    wide = announcement(parameters={name: value * 3 for name, value in QUESTION.items()} | {"columns": ["x", "y", "z"]})
    assert validate_announcement(wide, EXACT, Limits(dimension_max=3)).dimension == 3
    with pytest.raises(UsageError, match="dimension 3 exceeds 2"):
        validate_announcement(wide, EXACT, Limits(dimension_max=2))
    with pytest.raises(UsageError, match="unknown"):
        validated(statistic="summ")


# μ against (ε, δ)


@pytest.mark.parametrize("kind", [SUM, RELEASE, LdpReport()], ids=name_of)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-6), (1.0, 1e-12), (5.0, 1e-5), (30.0, 0.1)])
def test_a_mu_that_is_one_ulp_too_large_is_refused(kind: Any, epsilon: float, delta: float) -> None:
    name = "analytic-gaussian" if isinstance(kind, LdpReport) else EXACT.name
    quote = {"epsilon": epsilon, "delta": delta, "mechanism": name}
    largest = accounting.mu_of(epsilon, delta)
    assert validated(kind, mu=largest, **quote).mu == pytest.approx(largest, rel=1e-15)
    with pytest.raises(UsageError, match=r"mu is .*, expected above 0 and at most"):
        validated(kind, mu=math.nextafter(largest, math.inf), **quote)


@pytest.mark.parametrize("mu", [0.0, -MU, math.inf, math.nan, -math.inf])
def test_a_mu_that_is_none_is_refused(mu: float) -> None:
    with pytest.raises(UsageError, match=r"mu is .*, expected above 0"):
        validated(mu=mu)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-6), (-1.0, 1e-6), (math.nan, 1e-6), (1.0, 0.0), (1.0, 1.0),
                                                (1.0, math.nan), (math.inf, 1e-6)])  # fmt: skip
def test_a_quote_that_is_none_is_refused(epsilon: float, delta: float) -> None:
    """δ = 0 is for reports that are private by ε alone."""
    with pytest.raises(UsageError, match=r"epsilon|delta"):
        validated(epsilon=epsilon, delta=delta)


def test_the_largest_mu_is_private_by_the_curve_itself() -> None:
    """Balle and Wang (2018), theorem 8, in 50 digits: δ(ε; μ) is at most δ, and above it a part of 1e-6 further on."""
    for epsilon, delta in ((0.1, 1e-6), (1.0, 1e-6), (5.0, 1e-5), (1.0, 1e-12)):
        largest = accounting.mu_of(epsilon, delta)
        for mu, allowed in ((largest, True), (largest * (1 + 1e-6), False)):
            with mpmath.workdps(50):
                e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
                found = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
                assert (found <= mpmath.mpf(delta)) == allowed
            if allowed:
                check_mu(mu, epsilon, delta)


def test_so_much_mu_protects_nobody_and_is_refused() -> None:
    epsilon = 1000.0
    with pytest.raises(UsageError, match="protects nobody"):
        validated(mu=accounting.mu_of(epsilon, 1e-6), epsilon=epsilon)


@pytest.mark.parametrize("name", ["grid-laplace", "randomised-response", "unary-encoding"])
def test_a_report_that_is_private_by_epsilon_has_no_other_figures(name: str) -> None:
    mu = accounting.mu_of_pure(1.0)
    found = validated(LdpReport(), **report(name))
    assert (found.cost.pure, found.cost.gaussian, found.mu) == (1.0, 0.0, mu)
    for changes in ({"delta": 1e-6}, {"mu": math.nextafter(mu, 0)}, {"mu": math.nextafter(mu, math.inf)}, {"mu": MU}):
        with pytest.raises(UsageError, match="is private by epsilon alone"):
            validated(LdpReport(), **report(name, **changes))
    for kind in (SUM, RELEASE):
        with pytest.raises(UsageError):
            validated(kind, **report(name))


# Consent


def test_a_secure_sum_is_held_against_those_on_whom_it_relies() -> None:
    assert declined(OPEN, SUM) is None
    for policy, reason in (
        (msgspec.structs.replace(OPEN, clients_min=21), "clients"),
        (msgspec.structs.replace(OPEN, honest_min=17), "honest"),
        (msgspec.structs.replace(OPEN, colluders_min=4), "colluders"),
        (msgspec.structs.replace(OPEN, colluders_part_min=0.16), "colluders"),
        (msgspec.structs.replace(OPEN, computes_min=3), "computes"),
    ):
        assert declined(policy, SUM) == reason
        rows_of_many = msgspec.structs.replace(policy, rows_of_many=True)
        assert declined(rows_of_many, RELEASE) is None, "nobody else is relied on there"
        assert declined(policy, LdpReport(), **report("grid-laplace")) is None
    assert declined(OPEN, SUM, frozenset({"north"})) == "trusted-computes"


def test_a_data_node_releases_only_if_its_policy_says_that_rows_are_many_peoples() -> None:
    assert declined(OPEN, RELEASE) == "rows-of-many"
    assert declined(msgspec.structs.replace(OPEN, rows_of_many=True), RELEASE) is None
    assert declined(OPEN, LdpReport(), mechanism="analytic-gaussian") is None


def test_consent_is_by_mu_and_not_by_how_it_is_quoted() -> None:
    """A small μ quoted generously passes the limit of a round; the ledger is charged with that μ."""
    tight = msgspec.structs.replace(OPEN, epsilon_per_round_max=0.5)
    limit = accounting.mu_of(0.5, 1e-6)
    assert declined(tight, SUM) == "epsilon"
    assert declined(tight, SUM, mu=limit) is None
    assert declined(tight, SUM, mu=limit * (1 + 1e-12)) == "epsilon"
    found = validated(mu=limit)
    assert tight.check_budget(found.cost, Ledger(), 0) is None


# From a request to the announcement


def test_each_request_becomes_an_announcement_of_its_kind() -> None:
    """The announcement adds the trainer's mechanism, if the kind names none, and the number of clients."""

    def asked(kind: Any, **changes: Any) -> Announcement:
        plain = {"round_id": bytes(16), "statistic": "sum", "parameters": QUESTION, "epsilon": 1.0, "delta": 1e-6,
                 "rows_max": 1}  # fmt: skip
        return OpenRound(kind=kind, **{**plain, **changes}).draft(EXACT, Limits())[0]

    computes = {"computes": (b"a" * 16, b"b" * 16)}
    summed = asked(SecureSum(clients=30, tolerate=5, colluders=2), **computes)
    assert summed.kind == SecureSum(EXACT.name, 30, 5, 2)
    assert len(summed.epochs) == 2
    assert (summed.mu, summed.epsilon, summed.delta) == (MU, 1.0, 1e-6)
    invited = tuple(number.to_bytes(16, "big") for number in range(9))
    assert asked(SecureSum(tolerate=5), invited=invited, **computes).kind == SecureSum(EXACT.name, 9, 5)
    assert asked(SecureSum(clients=30), mu=0.1, **computes).mu == 0.1
    alone = asked(NodeRelease(clients=30))
    assert (alone.kind, alone.epochs, alone.mu) == (NodeRelease(EXACT.name, 30), (), MU)
    reported = asked(LdpReport("grid-laplace", 30), delta=0.0)
    assert (reported.kind, reported.mu) == (LdpReport("grid-laplace", 30), accounting.mu_of_pure(1.0))


def test_a_request_names_no_mechanism_of_sums_but_the_trainers_own() -> None:
    with pytest.raises(UsageError, match=f"mechanism '{NoNoise.name}' is not offered here"):
        OpenRound(
            round_id=bytes(16), kind=NodeRelease(NoNoise.name), statistic="sum", parameters=QUESTION, rows_max=1,
            epsilon=1.0, delta=1e-6,
        ).draft(EXACT, Limits())  # fmt: skip
