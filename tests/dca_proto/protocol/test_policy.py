"""A client's policy and a Compute node's floors: each limit bites exactly at its figure."""

from __future__ import annotations

import math
import re
from pathlib import Path

import msgspec
import pytest

from dca_proto.errors import UsageError
from dca_proto.privacy import accounting
from dca_proto.privacy.cost import PrivacyCost
from dca_proto.privacy.mechanism import DistributedDiscreteGaussian
from dca_proto.privacy.rounding import at_least, at_most
from dca_proto.protocol import policy as policy_module
from dca_proto.protocol.ledger import Charge, CostToClients, Ledger
from dca_proto.protocol.params import DAY_MS, Limits
from dca_proto.protocol.policy import LASTING, BudgetLimit, Floors, Policy, Refusal
from dca_proto.protocol.validation import validate_announcement
from dca_proto.protocol.wire.kinds import LdpReport, SecureSum
from dca_proto.protocol.wire.messages import Announcement, Signed
from dca_proto.statistics import Statistic

NOW_MS = 1000 * DAY_MS
TRAINER = bytes(range(16))


def box(columns: tuple[str, ...], scales: tuple[float, ...], centre: float = 0.0) -> dict[str, object]:
    """Parameters of a sum of columns within centre ± scale."""
    ones = [1.0] * len(columns)
    return {"columns": list(columns), "centre": [centre] * len(columns), "scale": list(scales), "bound": ones}


EPOCH_KEY = Signed(b"", bytes(64))
SUM = SecureSum(DistributedDiscreteGaussian.name, 40, 1, 1)


def announcement(**changes: object) -> Announcement:
    """Of a secure sum; n_min can be given as `n_min`, M as `computes`; μ is all that (ε, δ) allows."""
    question = {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [1.0]}
    kind, keys = changes.pop("kind", SUM), (EPOCH_KEY,) * changes.pop("computes", 3)
    if isinstance(kind, SecureSum):
        c = changes.pop("colluders", kind.colluders)
        kind = msgspec.structs.replace(kind, clients=changes.pop("n_min", 40), tolerate=c, colluders=c)
    plain = Announcement(
        bytes(16), TRAINER, 1, bytes(32), "sum", question, 0, 24,
        0.0, 1.0, 1e-5, kind, keys if kind.is_summed else (), bytes(32), b"", 1, 2,
    )  # fmt: skip
    announced = msgspec.structs.replace(plain, **changes)
    allowed = (
        accounting.mu_of(announced.epsilon, announced.delta)
        if announced.delta
        else accounting.mu_of_pure(announced.epsilon)
    )
    return announced if announced.mu else msgspec.structs.replace(announced, mu=allowed)


def refusal_of(
    policy: Policy, ledger: Ledger | None = None, missing: tuple[str, ...] = (), **changes: object
) -> Refusal | None:
    announced = announcement(**changes)
    validated = validate_announcement(announced, DistributedDiscreteGaussian(), Limits())
    refused = policy.check_announcement(announced, validated, frozenset(missing))
    return refused or policy.check_budget(validated.cost, ledger or Ledger(), NOW_MS)


def refusal(
    policy: Policy, ledger: Ledger | None = None, missing: tuple[str, ...] = (), **changes: object
) -> str | None:
    refused = refusal_of(policy, ledger, missing, **changes)
    return refused.reason if refused else None


def test_the_defaults_let_a_usual_round_through() -> None:
    assert refusal(Policy()) is None


@pytest.mark.parametrize(
    ("policy", "changes", "reason"),
    [
        (Policy(trainers=(TRAINER.hex(),)), {"trainer": bytes(16)}, "trainer"),
        (Policy(statistics=("sum",)), {"statistic": "mean"}, "statistic"),
        (Policy(dimension_max=1), {"parameters": box(("x", "y"), (1.0, 1.0))}, "dimension"),
        (Policy(bounds={"x": (-1.0, 1.0)}), {"parameters": box(("x",), (1.0 + 1e-6,))}, "bounds"),
        (Policy(computes_min=3), {"computes": 2}, "computes"),
        (Policy(colluders_min=1), {"colluders": 0}, "colluders"),
        (Policy(colluders_part_min=1 / 40), {"n_min": 41}, "colluders"),
        (Policy(clients_min=40), {"n_min": 39}, "clients"),
        (Policy(honest_min=38), {"colluders": 2}, "honest"),
        (Policy(), {"delta": 1.0001e-5, "epsilon": 0.1}, "delta"),
        (Policy(), {"epsilon": 1.0001}, "epsilon"),
    ],
)
def test_each_limit_bites_where_it_is_crossed(policy: Policy, changes: dict, reason: str) -> None:
    assert refusal(policy) is None, "at the limit"
    assert refusal(policy, **changes) == reason


def test_a_smaller_delta_may_buy_a_larger_epsilon_only_within_the_same_mu() -> None:
    """The limit is held in Gaussian DP: (1.2, 1e-7) is a smaller promise broken than (1, 1e-5)."""
    assert accounting.mu_of(1.2, 1e-7) < accounting.mu_of(1.0, 1e-5)
    assert refusal(Policy(), epsilon=1.2, delta=1e-7) is None


def test_no_trusted_compute_node_may_be_missing() -> None:
    assert refusal(Policy(), missing=("north",)) == "trusted-computes"


def spent(mu: float, days_ago: float) -> Ledger:
    return Ledger([Charge(bytes(16), "sum", TRAINER, mu, 1.0, 1e-5, NOW_MS - int(days_ago * DAY_MS), 1)])


def test_the_budget_is_of_a_period() -> None:
    allowed, round_mu = accounting.mu_of(4.0, 1e-5), accounting.mu_of(1.0, 1e-5)
    just = (allowed**2 - round_mu**2) ** 0.5
    assert refusal(Policy(), spent(just * (1 - 1e-12), 1)) is None
    assert refusal(Policy(), spent(just * (1 + 1e-9), 1)) == "budget"
    assert refusal(Policy(), spent(allowed, 364.9)) == "budget"
    assert refusal(Policy(), spent(allowed, 365.1)) is None


def test_a_budget_refusal_states_the_sum_the_limit_and_the_rest() -> None:
    allowed, round_mu = accounting.mu_of(4.0, 1e-5), accounting.mu_of(1.0, 1e-5)
    ledger = spent(math.sqrt(allowed**2 - (round_mu / 2) ** 2), 1)
    total = accounting.epsilon_of(math.sqrt(allowed**2 + 0.75 * round_mu**2), 1e-5)
    left = Policy().budget_limit.left(ledger, NOW_MS)
    assert 0 < left < 1
    assert refusal_of(Policy(), ledger) == Refusal(
        "budget",
        f"a total of epsilon {at_least(total)} with this round",
        f"<= 4 at delta 1e-05 in 365 days; at most {at_most(left)} is left",
    )


@pytest.mark.parametrize("share", [0.0, 1e-6, 0.1, 0.9, 1 - 1e-6, 1 - 1e-12, 1.0, 2.0])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.01, 1e-10), (1.0, 1e-6), (4.0, 1e-5), (40.0, 1e-3)])
def test_what_is_left_is_let_through_and_no_more(share: float, epsilon: float, delta: float) -> None:
    budget_limit = BudgetLimit(epsilon=epsilon, delta=delta)
    ledger = spent(budget_limit.mu * share, 1) if share else Ledger()
    left = budget_limit.left(ledger, NOW_MS)
    if left:
        assert budget_limit.check(PrivacyCost.of(left, delta), ledger, NOW_MS) is None
    more = max(left * (1 + 1e-5), 2e-4 * epsilon)
    assert budget_limit.check(PrivacyCost.of(more, delta), ledger, NOW_MS) is not None
    assert budget_limit.left(ledger, NOW_MS, [CostToClients(PrivacyCost.of_mu(budget_limit.mu))]) == 0.0, (
        "all of it is promised"
    )


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_all_of_a_budget_can_be_spent_in_one_round_and_then_nothing(epsilon: float) -> None:
    budget_limit = BudgetLimit(epsilon=epsilon, delta=1e-5)
    assert budget_limit.left(Ledger(), NOW_MS) == epsilon
    assert budget_limit.check(PrivacyCost.of_mu(budget_limit.mu), Ledger(), NOW_MS) is None
    assert budget_limit.check(PrivacyCost.of_mu(budget_limit.mu * (1 + 1e-12)), Ledger(), NOW_MS) is not None
    assert budget_limit.check(PrivacyCost.of_mu(1e-6 * budget_limit.mu), spent(budget_limit.mu, 1), NOW_MS) is not None
    only = Policy(epsilon_per_round_max=epsilon, epsilon_per_period_max=epsilon)
    assert refusal(only, epsilon=epsilon, delta=1e-5) is None


def test_left_over_a_period_comes_back() -> None:
    budget_limit = BudgetLimit(epsilon=2.0, delta=1e-6, period_days=7.0)
    assert budget_limit.left(spent(budget_limit.mu, 6.9), NOW_MS) == 0.0
    assert budget_limit.left(spent(budget_limit.mu, 7.1), NOW_MS) == pytest.approx(2.0, rel=1e-6)


def test_one_delta_serves_for_a_round_and_for_the_total() -> None:
    """The rounds of a period together are (4, 1e-5)-private, although each was announced at a δ of its own."""
    policy, ledger, mus = Policy(), Ledger(), []
    for number in range(1, 100):
        epsilon, delta = (0.5, 1e-5) if number % 2 else (0.5, 1e-9)
        if refusal(policy, ledger, epsilon=epsilon, delta=delta):
            break
        mus.append(accounting.mu_of(epsilon, delta))
        round_id = number.to_bytes(16, "big")
        ledger.charge(Charge(round_id, "sum", TRAINER, mus[-1], epsilon, delta, NOW_MS, number))
    assert 10 < len(mus) < 98
    assert accounting.delta_of(4.0, accounting.compose(mus)) <= 1e-5


# Reports


REPORTS = {
    "kind": LdpReport("grid-laplace"),
    "delta": 0.0,
}


def reported(*epsilons: float) -> Ledger:
    figures = [(number, accounting.mu_of_pure(epsilon), epsilon) for number, epsilon in enumerate(epsilons, 1)]
    return Ledger(
        [
            Charge(number.to_bytes(16, "big"), "sum", TRAINER, mu, epsilon, 0.0, NOW_MS, number)
            for number, mu, epsilon in figures
        ]
    )


def test_a_report_of_epsilon_is_held_against_epsilon_whatever_delta_is() -> None:
    for policy in (Policy(), Policy(delta_max=1e-12)):
        assert refusal(policy, **REPORTS) is None, "at the limit"
        assert refusal(policy, **{**REPORTS, "epsilon": 1.0001}) == "epsilon"
    refused = refusal_of(Policy(), **{**REPORTS, "epsilon": 2.0})
    assert refused == Refusal("epsilon", "2 at delta 0", "<= 1 at delta 1e-05")


def test_reports_add_up_to_the_budget_and_no_further() -> None:
    assert refusal(Policy(), reported(1.0, 1.0, 1.0), **REPORTS) is None
    assert refusal_of(Policy(), reported(1.0, 1.0, 1.0, 0.5), **REPORTS) == Refusal(
        "budget", "a total of epsilon 4.5 with this round", "<= 4 at delta 1e-05 in 365 days; at most 0.5 is left"
    )
    budget_limit = Policy().budget_limit
    assert budget_limit.left(reported(3.5), NOW_MS, pure=True) == 0.5
    assert budget_limit.left(reported(4.0), NOW_MS, pure=True) == budget_limit.left(reported(4.0), NOW_MS) == 0.0


def test_a_report_beside_a_gaussian_round_has_to_fit_as_one() -> None:
    """A report of 1 is as good as a Gaussian round of 5.6, and so does not fit beside any; one of 0.7 does."""
    apart = (
        "; reports of delta 0 and Gaussian rounds cost more together than apart: keep them to different periods, "
        "or set epsilon_for_reports before the first"
    )
    ledger = spent(accounting.mu_of(0.5, 1e-5), 1)
    total = (ledger.spent() + PrivacyCost.of_pure(1.0)).epsilon(1e-5)
    left = Policy().budget_limit.left(ledger, NOW_MS, pure=True)
    assert total > accounting.epsilon_of(accounting.mu_of_pure(1.0), 1e-5) > 5.5
    assert 0.7 < left < 0.75
    assert refusal_of(Policy(), ledger, **REPORTS) == Refusal(
        "budget",
        f"a total of epsilon {at_least(total)} with this round",
        f"<= 4 at delta 1e-05 in 365 days; at most {at_most(left)} is left{apart}, or raise epsilon_per_period_max",
    )
    assert refusal(Policy(), ledger, **{**REPORTS, "epsilon": left}) is None
    assert refusal(Policy(), ledger, **{**REPORTS, "epsilon": left * 1.0001}) == "budget"
    assert refusal(Policy(), reported(0.7)) is None
    refused = refusal_of(Policy(), reported(1.0))
    assert refused is not None
    assert refused.expected.startswith("<= 4 at delta 1e-05 in 365 days; at most 0 is left; reports of delta 0 and")
    assert refusal(Policy(epsilon_per_period_max=6.0), reported(1.0)) is None, "as the refusal advises"


def test_many_small_reports_come_to_less_than_their_sum() -> None:
    policy, ledger = Policy(), reported(*[0.1] * 45)
    assert refusal(policy, ledger, **{**REPORTS, "epsilon": 0.1}) is None
    assert 4.5 > ledger.spent().epsilon(1e-5) > 3.5


# Bounds


class Silent(Statistic, frozen=True, kw_only=True):
    """A statistic of a library user's own that does not say to what it clamps."""

    @property
    def dimension(self) -> int:
        return 1

    def labels(self) -> tuple[str, ...]:
        return ("x",)

    row_sensitivity = evaluate = None  # never called here


@pytest.mark.parametrize(
    ("low", "high", "allowed"),
    [
        (0.0, 10.0, True),
        (0.1, 0.7, True),
        (0.0, 10.0 * (1 + 1e-12), True),  # rounding
        (2.0, 3.0, True),  # a narrower interval tells no more
        (0.0, 10.001, False),
        (-0.001, 10.0, False),
        (-1e6, 1e6, False),
        (11.0, 12.0, False),
    ],
)
def test_attack_16_larger_bounds_than_the_policys_are_declined_with_both(
    low: float, high: float, allowed: bool
) -> None:
    policy = Policy(bounds={"y": (0.0, 1.0), "x": (0.0, 10.0)})
    refusal = refusal_of(policy, parameters=box(("x",), ((high - low) / 2,), (high + low) / 2))
    if allowed:
        assert refusal is None
    else:
        assert refusal is not None
        assert (refusal.reason, refusal.expected) == ("bounds", "x within 0 to 10")
        assert refusal.found == f"x within {low:.9g} to {high:.9g}"


def test_a_statistic_that_does_not_say_its_range_is_declined_where_the_policy_asks_for_it() -> None:
    silent = Silent(columns=("x",))
    assert silent.ranges() == {}
    assert Policy(bounds={"x": (0.0, 1.0)}).check_bounds(silent) == Refusal(
        "bounds", "x without a range", "x within 0 to 1"
    )
    assert Policy(bounds={"z": (0.0, 1.0)}).check_bounds(silent) is None
    assert Policy().check_bounds(silent) is None


def test_every_column_of_a_statistic_is_held_against_the_bounds() -> None:
    policy = Policy(bounds={"x": (-1.0, 1.0), "y": (-1.0, 1.0)})
    for statistic in ("sum", "mean", "second-moments", "regression"):
        assert refusal(policy, statistic=statistic, parameters=box(("x", "y"), (1.0, 1.0))) is None
        for scales in ((1.0, 2.0), (2.0, 1.0)):
            assert refusal(policy, statistic=statistic, parameters=box(("x", "y"), scales)) == "bounds"
    bins = {"columns": ["x"], "edges": [-1.0, 0.0, 1.0]}
    assert refusal(policy, statistic="histogram", parameters=bins) is None
    assert refusal(policy, statistic="histogram", parameters={**bins, "edges": [-1.0, 0.0, 2.0]}) == "bounds"


# Figures


def test_a_refusal_has_both_figures() -> None:
    """Beside the figures of one that has enough: by a client's policy and by a Compute node's floors alike."""
    policy, floors = Policy(clients_min=20, honest_min=10), Floors(clients_min=20, honest_min=10)
    for n_min, colluders, expected in (
        (19, 0, Refusal("clients", "n_min = 19", "n_min >= 20 (clients_min)")),
        (20, 10, Refusal("honest", "n_min - 1 - c = 9", "n_min - 1 - c >= 10 (honest_min)")),
        (20, 9, None),
    ):
        announced = announcement(n_min=n_min, colluders=colluders)
        assert isinstance(announced.kind, SecureSum)
        assert floors.check(announced, announced.kind) == expected
        assert refusal_of(policy, n_min=n_min, colluders=colluders) == expected
    assert refusal_of(Policy(colluders_min=2)) == Refusal("colluders", "c = 1", "c >= 2")
    assert refusal_of(Policy(colluders_part_min=0.0251)) == Refusal("colluders", "c = 1", "c >= 2"), (
        "2 of 40, rounded up"
    )


def test_a_node_hears_its_trainers_only() -> None:
    announced = announcement()
    for trainers, reason in (((), None), ((TRAINER.hex(),), None), ((bytes(16).hex(),), "trainer")):
        refused = Floors(trainers=trainers).check(announced, SUM)
        assert (refused.reason if refused else None) == reason


@pytest.mark.parametrize(
    "fields",
    [
        {"epsilon_per_round_max": 0.0},
        {"epsilon_per_round_max": float("nan")},
        {"epsilon_per_period_max": -1.0},
        {"delta_max": 0.0},
        {"delta_max": 1.0},
        {"epsilon_for_reports": -0.1},
        {"epsilon_for_reports": 4.0},
        {"epsilon_for_reports": float("nan")},
        {"period_days": 0.0},
        {"period_days": float("inf")},
        {"delta_max": float("nan")},
        {"computes_min": 1},
        {"honest_min": 0},
        {"clients_min": 0},
        {"colluders_min": -1},
        {"colluders_part_min": 1.0},
        {"colluders_part_min": -0.1},
        {"colluders_part_min": float("nan")},
        {"dimension_max": 0},
        {"bounds": {"x": (1.0, 1.0)}},
        {"bounds": {"x": (2.0, 1.0)}},
        {"bounds": {"x": (0.0, float("inf"))}},
        {"bounds": {"x": (float("nan"), 1.0)}},
        {"bounds": {"x": (-1.5e308, 1.5e308)}},
    ],
)
def test_a_policy_that_would_protect_nobody_is_the_callers_error(fields: dict) -> None:
    """The line names the figure, what it is, and what to give instead."""
    (name,) = fields
    with pytest.raises(UsageError, match=rf"^policy: {name} (is|of) .*; give ") as caught:
        Policy(**fields)
    assert "\n" not in str(caught.value)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, Policy)


@pytest.mark.parametrize(
    "fields",
    [
        {"epsilon": 0.0},
        {"delta": 1.0},
        {"period_days": -1.0},
        {"period_days": float("nan")},
        {"epsilon_for_reports": 4.0},
    ],
)
def test_an_account_that_can_hold_nothing_is_the_callers_error(fields: dict) -> None:
    (name,) = fields
    with pytest.raises(UsageError, match=rf"^account: {name} is .*; give "):
        BudgetLimit(**fields)


def test_floors_below_one_client_are_the_callers_error() -> None:
    with pytest.raises(UsageError, match="floors: clients_min is 0; give at least 1"):
        Floors(clients_min=0)
    with pytest.raises(UsageError, match="floors: honest_min is 0; give at least 1"):
        Floors(honest_min=0)


def test_an_unknown_field_is_an_error() -> None:
    for kind in (Policy, Floors, BudgetLimit):
        with pytest.raises(msgspec.ValidationError, match="unknown field"):
            msgspec.convert({"clients_mim": 3}, kind)


PASSING = {  # they depend on the time, on what was spent, on a round's nodes, or on an actor's federation file
    *("budget", "certificate", "charge-numbers", "computes", "epoch", "ledger", "open-rounds", "p", "restored"),
    *("revoked", "room", "rounds", "trusted-computes"),
}


def test_each_reason_to_refuse_a_round_lasts_or_passes() -> None:
    """A job repeats no round that was refused for a lasting reason; so each new reason is one or the other."""
    package = Path(policy_module.__file__).parents[1]
    texts = [path.read_text() for path in package.rglob("*.py")]
    reasons = {reason for text in texts for reason in re.findall(r'Refusal\(\s*"([^"]+)"', text)}
    assert len(reasons) > 20
    assert reasons == LASTING | PASSING
    assert not LASTING & PASSING
