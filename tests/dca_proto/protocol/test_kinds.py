"""The three kinds of rounds: each one's own terms, consent, price, noise and protection; and μ against (ε, δ)."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import msgspec
import pytest

from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
from dca_proto.privacy.accounting import check_mu
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian
from dca_proto.protocol.kinds import LdpReport, NodeRelease, SecureSum, ValidatedRound, validate_announcement
from dca_proto.protocol.ledger import Ledger
from dca_proto.protocol.params import Limits
from dca_proto.protocol.policy import Policy
from dca_proto.protocol.trainer.request import AskLdpReport, AskNodeRelease, AskSecureSum, OpenRound
from dca_proto.protocol.wire.messages import Announcement, Signed
from dca_proto.testing import NoNoise

EXACT = DistributedDiscreteGaussian()
TWO = (Signed(b"", bytes(64)),) * 2
QUESTION = {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [1.0]}
BINS = {"columns": ["x"], "edges": [0.0, 1.0, 2.0, 3.0]}
MU = accounting.mu_of(1.0, 1e-6)
SUM = SecureSum(20, 40, 3, TWO)
OPEN = Policy(clients_min=1, honest_min=1, delta_max=1e-6)


def announcement(terms: Any = SUM, **changes: Any) -> Announcement:
    plain = Announcement(
        bytes(16), bytes(16), 1, bytes(32), "sum", QUESTION, 1, 24, EXACT.name, MU, 1.0, 1e-6, terms,
        bytes(32), b"", 1, 2,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def validated(terms: Any = SUM, **changes: Any) -> ValidatedRound:
    return validate_announcement(announcement(terms, **changes), EXACT, Limits())


def declined(policy: Policy, terms: Any, missing: frozenset[str] = frozenset(), **changes: Any) -> str | None:
    asked = announcement(terms, **changes)
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


@pytest.mark.parametrize(("fewest", "colluders"), [(2, 0), (20, 3), (20, 18), (1000, 100)])
@pytest.mark.parametrize("part", [1.0, 0.5, 1e-3])
def test_a_secure_sums_share_is_for_the_honest_ones_and_for_the_announced_mu(
    fewest: int, colluders: int, part: float
) -> None:
    """A trainer that announces less μ than (ε, δ) allow gets the noise of that μ, and the client pays for that μ."""
    found = validated(SecureSum(fewest, 2 * fewest, colluders, TWO), mu=MU * part)
    assert found.honest == fewest - 1 - colluders
    expected = variance_of(MU * part, found.sensitivity.l2, found.honest)
    assert abs(found.noise_variance - expected) <= max(1, expected * 1e-12)
    assert found.mu == found.cost.mu == pytest.approx(MU * part, rel=1e-15)


def test_a_data_node_adds_all_of_the_noise_for_one_row() -> None:
    found = validated(NodeRelease(), rows_max=5)
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
    assert validated(NodeRelease()).report is None


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
    ("terms", "words"),
    [
        (SecureSum(20, 40, 3, TWO[:1]), r"M = 1 Compute nodes; use 2 to 64"),
        (SecureSum(20, 40, 3, TWO[:1] * 65), r"M = 65 Compute nodes; use 2 to 64"),
        (SecureSum(20, 40, 19, TWO), r"n_min - 1 - c = 20 - 1 - 19 is below 1"),
        (SecureSum(0, 40, 0, TWO), r"n_min - 1 - c = 0 - 1 - 0 is below 1"),
        (SecureSum(20, 19, 3, TWO), r"n_max = 19 is below n_min = 20"),
        (SecureSum(20, 2**32 - 1, 3, TWO), r"2\^63"),
    ],
)
def test_terms_of_a_secure_sum_that_cannot_be(terms: SecureSum, words: str) -> None:
    """The last: so many contributions of up to 2^38 grid units do not fit into the ring."""
    wide = {"parameters": {**QUESTION, "bound": [2.0**14]}} if terms.most > 40 else {}
    with pytest.raises(UsageError, match=words):
        validated(terms, **wide)
    assert validated(SecureSum(20, 20, 18, TWO)).honest == 1


def test_the_ring_holds_n_max_contributions_and_not_one_more() -> None:
    """By the bound of DESIGN §4.3: n_max (C + noise) below 2^63, found here by bisection of the refusals."""
    wide = {"parameters": {**QUESTION, "bound": [2.0**14]}}

    def fits(most: int) -> bool:
        try:
            validated(SecureSum(20, most, 3, TWO), **wide)
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
    for terms in (SUM, NodeRelease()):
        for name in ("analytic-gaussian", "grid-laplace", NoNoise.name):
            with pytest.raises(UsageError, match=f"mechanism '{name}' is not offered here"):
                validated(terms, mechanism=name)
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


@pytest.mark.parametrize("terms", [SUM, NodeRelease(), LdpReport()], ids=lambda terms: type(terms).__name__)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-6), (1.0, 1e-12), (5.0, 1e-5), (30.0, 0.1)])
def test_a_mu_that_is_one_ulp_too_large_is_refused(terms: Any, epsilon: float, delta: float) -> None:
    name = "analytic-gaussian" if isinstance(terms, LdpReport) else EXACT.name
    quote = {"epsilon": epsilon, "delta": delta, "mechanism": name}
    largest = accounting.mu_of(epsilon, delta)
    assert validated(terms, mu=largest, **quote).mu == pytest.approx(largest, rel=1e-15)
    with pytest.raises(UsageError, match=r"mu is .*, expected above 0 and at most"):
        validated(terms, mu=math.nextafter(largest, math.inf), **quote)


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
    for terms in (SUM, NodeRelease()):
        with pytest.raises(UsageError):
            validated(terms, **report(name))


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
        assert declined(rows_of_many, NodeRelease()) is None, "nobody else is relied on there"
        assert declined(policy, LdpReport(), **report("grid-laplace")) is None
    assert declined(OPEN, SUM, frozenset({"north"})) == "trusted-computes"


def test_a_data_node_releases_only_if_its_policy_says_that_rows_are_many_peoples() -> None:
    assert declined(OPEN, NodeRelease()) == "rows-of-many"
    assert declined(msgspec.structs.replace(OPEN, rows_of_many=True), NodeRelease()) is None
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


def test_each_request_becomes_the_terms_of_its_kind() -> None:
    def asked(ask: Any, **changes: Any) -> Announcement:
        plain = {"round_id": bytes(16), "statistic": "sum", "parameters": QUESTION, "epsilon": 1.0, "delta": 1e-6,
                 "clients_expected": 30, "rows_max": 1}  # fmt: skip
        return OpenRound(ask=ask, **{**plain, **changes}).draft(EXACT, Limits())[0]

    computes = (b"a" * 16, b"b" * 16)
    summed = asked(AskSecureSum(computes=computes, tolerated=5, colluders=2))
    assert isinstance(summed.terms, SecureSum)
    assert (summed.terms.fewest, summed.terms.most, summed.terms.colluders) == (27, 60, 2)
    assert len(summed.terms.computes) == 2
    assert (summed.mu, summed.epsilon, summed.delta) == (MU, 1.0, 1e-6)
    assert asked(AskSecureSum(computes=computes, tolerated=5, most=28)).terms.most == 28  # type: ignore[union-attr]
    assert asked(AskSecureSum(computes=computes, tolerated=5), mu=0.1).mu == 0.1
    alone = asked(AskNodeRelease())
    assert (alone.terms, alone.mechanism, alone.mu) == (NodeRelease(), EXACT.name, MU)
    reported = asked(AskLdpReport(mechanism="grid-laplace"), delta=0.0)
    assert (reported.terms, reported.mechanism) == (LdpReport(), "grid-laplace")
    assert reported.mu == accounting.mu_of_pure(1.0)
