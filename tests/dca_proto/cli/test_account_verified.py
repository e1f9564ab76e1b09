"""`dca account --verified` against the exact privacy loss of its noise, and against figures worked out by hand.

The oracle draws on nothing of the account but its numbers: integers m and a give the law of a sum of uniform numbers,
in whole numbers, and dp-accounting composes its loss. Everything is deterministic: no test has a chance of a false
alarm.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_two_probability_mass_functions

from dca_proto.cli import main
from dca_proto.protocol import terms

TAU = 2.0**-64
BINS = "--statistic histogram --dimension 2 --rows-max 1 --clients 40 --tolerate 4"
HONEST = 35
Answer = Callable[[str], dict[str, Any]]


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Answer:
    monkeypatch.chdir(tmp_path)

    def call(options: str) -> dict[str, Any]:
        assert main(["account", "--verified", *options.split(), "--json", "-"]) == 0
        value: dict[str, Any] = json.loads(capsys.readouterr().out)
        return value

    return call


def losses(uniforms: int, bits: int, shift: int, *, above: bool) -> PrivacyLossDistribution:
    """The loss of one number with the noise of so many uniform numbers, moved by `shift`; rounded up, or down."""
    law = [1]
    for _ in range(uniforms):
        total = [0, *accumulate(law + [0] * ((1 << bits) - 1))]
        law = [total[j + 1] - total[max(0, j + 1 - (1 << bits))] for j in range(len(total) - 1)]
    whole = 1 << uniforms * bits
    log = [math.log(count) - math.log(whole) for count in law]
    p = {place: one for place, one in enumerate(log) if one > -55}  # the rest, 1e-22 in all, is infinite loss
    q = {place + shift: one for place, one in p.items()}
    return from_two_probability_mass_functions(p, q, pessimistic_estimate=above, value_discretization_interval=1e-4)


@pytest.mark.parametrize("period", ["", pytest.param(" --every day --for 7d", marks=pytest.mark.long)])
def test_every_epsilon_is_that_of_the_exact_loss_rounded_up(answer: Answer, period: str) -> None:
    """A vote moves from one bin to the other, in each of the rounds: so many numbers, each moved by a vote."""
    found = answer(f"{BINS} --epsilon 1 --delta 1e-6{period}")
    (planned,) = found["rounds"]
    times = 7 if period else 1
    assert (found["times"], planned["fraction_bits"] % 2) == (times, 0)
    law = HONEST * planned["noises"], planned["noise_bits"], 1 << planned["fraction_bits"]
    least, most = (losses(*law, above=above).self_compose(2 * times) for above in (False, True))
    shown = [point for point in found["curve"] if point["delta"] >= 1e-9]  # below, composition's own error counts
    assert len(shown) == 7
    for point in shown:
        exact = least.get_epsilon_for_delta(point["delta"])
        assert exact <= point["epsilon"], point
        assert point["epsilon"] <= 1.12 * most.get_epsilon_for_delta(point["delta"]), "hardly more than is needed"
    assert least.get_epsilon_for_delta(1e-6) <= found["epsilon_spent"] <= 1


def test_what_ledgers_are_charged_is_mu_and_the_slack_of_each_number(answer: Answer) -> None:
    options = "--clients 500 --statistic mean --bounds age=0:120,bmi=10:60 --rows-max 1 --every day --for 26w"
    found = answer(options)
    (planned,) = found["rounds"]
    assert (planned["dimension"], planned["slack"], found["verified"]) == (3, 3 * TAU, True)
    assert found["slack"] == pytest.approx(182 * 3 * TAU, rel=1e-12)
    assert found["mu"] == pytest.approx(math.sqrt(182) * planned["mu"], rel=1e-12)


def test_a_slack_that_decides_is_in_every_epsilon(answer: Answer) -> None:
    """δ = 1e-12 has room for the slack that a job keeps, 2^-44, at a small ε only: (1 + e^ε)·2^-44 = 1.2e-13."""
    proven = answer(f"{BINS} --epsilon 0.1 --delta 1e-12")
    assert main(["account", *BINS.split(), "--epsilon", "0.1", "--delta", "1e-12", "--json", "plain.json"]) == 0
    plain = json.loads(Path("plain.json").read_text())["mu_budget"]
    assert 0.95 * plain < proven["mu_budget"] < 0.999 * plain


def test_the_figures_of_a_proof_by_hand(answer: Answer) -> None:
    """DESIGN §12: bits, their proof, and what one vote too many in a bin is beside the noise."""
    found = answer(BINS)
    (planned,) = found["rounds"]
    m, a, vote = planned["noises"], planned["noise_bits"], 1 << planned["fraction_bits"]
    width = vote.bit_length()
    limited = 3  # both bins, and their sum
    bits = limited * width + 2 * m * a
    order = next(n for n in range(bits, 2**31) if (2**31 - 2) % n == 0)
    assert planned["contribution_bytes"] == 4 * (bits + order + 6 * 2 - 1)
    assert planned["ring_bits"] == math.ceil(math.log2(1 + 40 * (vote + m * (2**a - 1))))
    noise = m * (4**a - 1) / 12
    assert planned["sigma_local"] * vote == pytest.approx(math.sqrt(noise), rel=1e-12)
    assert planned["sigma_sum"] * vote == pytest.approx(math.sqrt(40 * (noise + 0.25)), rel=1e-12)  # and rounding
    assert planned["liar_sds"] == pytest.approx(vote / math.sqrt(40 * noise), rel=1e-12), "votes are not rounded"
    assert planned["sensitivity"] == pytest.approx(math.sqrt(2), rel=1e-6)
    assert planned["sigma_std"] == pytest.approx(math.sqrt(2) / planned["mu"], rel=1e-6)
    assert planned["scale_factor"] == pytest.approx((planned["sigma_sum"] / planned["sigma_std"]) ** 2, rel=1e-9)


def test_the_signal_of_a_coarse_grid_is_in_units_of_the_data(answer: Answer) -> None:
    """A mean of values within ±1 of 1,000 clients: its noise is about that of a plain sum."""
    (planned,) = answer("--clients 1000 --statistic mean --bounds t=0:50 --rows-max 1")["rounds"]
    assert planned["bound"] == pytest.approx(1, rel=1e-6)
    assert planned["noise_of_mean"] == pytest.approx(planned["sigma_sum"] / 1000, rel=1e-6)


def test_the_table_says_what_is_proven_and_what_is_left(
    answer: Answer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["account", "--verified", *BINS.split()]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "slack of the round, beside mu 1.085e-19" in text
    assert "bits of the field's 31 that the sum can need" in text
    assert "ledgers are charged mu 0.2681 and slack 1.085e-19; epsilon includes both" in text
    assert "A client whose proof fails is left out and named." in text
    assert "K liars by K times that: a lying client moves the sum no farther than an honest one can. One lying " in text
    assert main(["account", *BINS.split()]) == 0
    text = capsys.readouterr().out
    assert "slack" not in text
    assert "ring's 64" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--kind node-release", "rounds of this kind cannot be verified, only secure sums; leave out verified"),
        ("--rows-max 1 --delta 1e-14", "delta 1e-14 is too small for verified rounds: they keep a slack of 5.685e-14"),
        (
            "--rows-max 1 --dimension 3000 --statistic histogram",
            "3,000 values in verified sums, expected at most 2,048",
        ),
    ],
)
def test_what_no_verified_round_can_be_is_refused_in_one_line(
    options: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "3000" in options:
        monkeypatch.setattr(terms, "SLACK_OF_ALL", 2.0**-53)
        monkeypatch.setattr("dca_proto.jobs.plan.SLACK_OF_ALL", 2.0**-53)
    assert main(["account", "--verified", "--clients", "50", *options.split()]) == 2
    output, error = capsys.readouterr()
    assert (output, error.count("\n")) == ("", 1)
    assert message in error


@pytest.mark.long
def test_the_picture_has_verified_rounds_at_other_n_and_t(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its curves are of the same kind as its ring: at N = 3, the noise of a proof is far from a plain sum's."""
    from dca_proto.cli import account

    kinds = []
    honest = account.forecast
    monkeypatch.setattr(account, "forecast", lambda request: kinds.append(request.kind.is_verified) or honest(request))
    monkeypatch.setattr(account, "_POINTS_VERIFIED", 2)
    monkeypatch.chdir(tmp_path)
    assert main(["account", "--verified", *BINS.split(), "--plot", "a.png"]) == 0
    assert len(kinds) > 10
    assert all(kinds)
