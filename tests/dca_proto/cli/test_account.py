"""`dca account` against figures worked out by hand, and against what a round's participants compute.

Everything is deterministic: no test here has a chance of a false alarm.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from statistic_samples import KINDS

from dca_proto.cli import main
from dca_proto.cli.account_options import Columns, named_statistic, parse_also
from dca_proto.errors import UsageError
from dca_proto.jobs.forecast import EXACT, forecast
from dca_proto.privacy.accounting import compose, epsilon_of, mu_of, mu_of_pure
from dca_proto.privacy.composition import Gaussian, Laplace, PureDP, RandomisedResponse, UnaryEncoding
from dca_proto.privacy.composition import epsilon_of as epsilon_of_all
from dca_proto.privacy.rounding import at_least
from dca_proto.protocol.params import Limits
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.validation import validate_announcement
from dca_proto.protocol.wire.kinds import SecureSum
from dca_proto.runtime.request import RoundSettings, open_round
from dca_proto.runtime.settings import convert
from dca_proto.statistics import ADD_OR_REMOVE_ONE_CLIENT, REPLACE_ONE_CLIENT, Regression, Sensitivity
from dca_proto.statistics.contribution import client_sensitivity
from dca_proto.testing import TestFederation

Run = Callable[..., tuple[int, str, str]]
FEATURES = ("first", "later", "target")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Calls `dca account` in a folder of its own: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(["account", *arguments])
        output, error = capsys.readouterr()
        return code, output, error

    return call


@pytest.fixture
def answer(run: Run) -> Callable[[str], dict[str, Any]]:
    """What `dca account ... --json -` answers; stdout is nothing but the JSON."""

    def call(options: str) -> dict[str, Any]:
        code, output, error = run(*options.split(), "--json", "-")
        assert code == 0, error
        value: dict[str, Any] = json.loads(output)
        return value

    return call


# --- figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "sigma"), [(1, 3.186), (10**0.5, 1.169), (10, 0.455), (10**1.5, 0.194)])
def test_the_noise_multiplier_is_the_exact_column_of_the_table(answer: Any, epsilon: float, sigma: float) -> None:
    """σ per unit sensitivity at δ = 1e-4; the classical rule has 0.434 and 0.137 for the last two: too little."""
    found = answer(f"--epsilon {epsilon} --delta 1e-4 --clients 100 --tolerate 0")
    assert found["noise_multiplier"] == pytest.approx(sigma, abs=6e-4)


def test_every_figure_of_a_sum_by_hand(answer: Any) -> None:
    """One column within ±2.5: Δ = 5, and each of N - T - 1 = 89 shares has variance (5/μ)²/89; w = √3 · 2.5."""
    found = answer("--epsilon 1 --delta 1e-6 --clients 100 --tolerate 10 --colluders 4 --bound 2.5 --dimension 1")
    mu = mu_of(1.0, 1e-6)
    local = 5 / mu / math.sqrt(89)
    expected = {
        "mu": mu,
        "noise_multiplier": 1 / mu,
        "sensitivity": 5,
        "sigma_std": 5 / mu,
        "sigma_local": local,
        "sigma_sum": local * 10,
        "sigma_sum_fewest": local * math.sqrt(94),
        "sigma_floor": 5 / mu,
        "scale_factor": 100 / 89,
        "scale_factor_std": math.sqrt(100 / 89),
        "noise_of_mean": local * 10 / 100 / 2.5,
        "sampling_error": 1 / 30,
        "signal_to_noise": 2.5 / 3 / (local * 10 / 100),
    }
    (entry,) = found["rounds"]
    assert {name: entry[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert (found["n_min"], found["honest"]) == (94, 89)
    assert (entry["relation"], entry["epsilon"], entry["share"]) == (REPLACE_ONE_CLIENT, 1.0, 1.0)
    weight = 2.5 * math.sqrt(3)
    largest = (100 * weight + local * 10 * math.sqrt(2 * 41 * math.log(2))) * 2**24
    assert entry["ring_bits"] == math.ceil(math.log2(largest)) + 1
    assert entry["labels"] == ["x1", "complete rows"]
    assert entry["noise_std"] == pytest.approx([local * 10, local * 10 / weight], rel=1e-6)
    for name in ("noise_multiplier", "sensitivity", "sigma_local", "scale_factor", "ring_bits"):
        assert found[name] == entry[name]


@pytest.mark.parametrize("tolerate", [0, 5, 10])
def test_the_factor_is_that_of_figure_1b(answer: Any, tolerate: int) -> None:
    """N/(N - T - 1), the scaling factor of Theorem 1, at ten N of the figure's axis; the grid adds less than 1e-6."""
    for clients in range(tolerate + 2, 101, 10):
        found = answer(f"--clients {clients} --tolerate {tolerate}")
        exact = clients / (clients - tolerate - 1)
        assert exact <= found["scale_factor"] < exact * (1 + 1e-6)


def test_a_coarse_grid_shows_in_the_factor(answer: Any) -> None:
    """The grid's nine squared units are in it: at σ_std = 5/μ·4 units they are a part 9/σ_std² of the variance."""
    found = answer("--clients 10 --tolerate 0 --fraction-bits 2 --bound 10 --rows-max 1")
    sigma_std = 80 / found["mu"]
    variance = math.ceil((sigma_std**2 * (1 + 1e-9) + 9) / 9)
    assert found["scale_factor"] == pytest.approx(10 * variance / sigma_std**2, rel=1e-9)
    assert found["scale_factor"] > 10 / 9 * (1 + 5 / sigma_std**2)


def test_the_figures_are_those_that_a_participant_computes(answer: Any) -> None:
    parameters = {"columns": list(FEATURES), "centre": [0.0] * 3, "scale": [1.0] * 3, "bound": [2.0] * 3}
    request = OpenRound(
        round_id=bytes(16),
        statistic="regression",
        parameters={**parameters, "target_square": True},
        epsilon=0.7,
        delta=1e-7,
        kind=SecureSum(clients=40, tolerate=3, colluders=1),
        computes=tuple(bytes([i]) * 16 for i in range(4)),
    )
    announcement, validated = request.draft(EXACT, Limits())
    assert validated == validate_announcement(announcement, EXACT, Limits())
    options = "--epsilon 0.7 --delta 1e-7 --clients 40 --tolerate 3 --colluders 1 --computes 4 --bound 2"
    found = answer(f"{options} --statistic regression --columns {','.join(FEATURES)} --parameter target_square=true")
    entry = found["rounds"][0]
    assert entry["sigma_local"] == math.sqrt(validated.noise_variance) / 2**24
    assert entry["sensitivity"] == pytest.approx(4 * math.sqrt(8), rel=1e-6)  # √8·c² of errata.md's equal bounds
    expected = forecast(request)
    assert {name: entry[name] for name in expected.__struct_fields__} == msgspec.structs.asdict(expected)


def test_a_sensitivity_of_another_relation_is_never_planned_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of adding or removing a client is up to half of what a replacement moves."""
    half = Sensitivity(l1=100, l2_squared=10_000, bound=100, relation=ADD_OR_REMOVE_ONE_CLIENT)
    monkeypatch.setattr("dca_proto.protocol.validation.client_sensitivity", lambda *_: half)
    columns = {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [1.0]}
    request = OpenRound(
        round_id=bytes(16), statistic="sum", parameters=columns, epsilon=1.0, delta=1e-6,
        kind=SecureSum(clients=10), computes=(bytes(16), bytes([1]) * 16),
    )  # fmt: skip
    with pytest.raises(UsageError, match=r"add-or-remove-one-client.*replace-one-client"):
        request.draft(EXACT, Limits())


def test_several_rounds_share_the_budget_by_the_roots_of_their_errors(answer: Any) -> None:
    """Errors Δ² d: second moments of 3 columns have 3·3, the regression's 9·d with y² (√8, d = 6) has 8·6."""
    job = "--clients 200 --epsilon 2 --delta 1e-5 --dimension 3 --statistic second-moments --statistic regression"
    found = answer(f"{job} --parameter target_square=true")
    roots = (math.sqrt(3 * 3), math.sqrt(8 * 6))
    assert [entry["share"] for entry in found["rounds"]] == pytest.approx(
        [root / sum(roots) for root in roots], rel=1e-6
    )
    assert found["mu"] == pytest.approx(compose(entry["mu"] for entry in found["rounds"]), rel=1e-12)
    assert mu_of(2.0, 1e-5) * (1 - 2e-6) < found["mu"] < mu_of(2.0, 1e-5)


def test_given_shares_are_used(answer: Any) -> None:
    """At ε = 1, δ = 1e-4 a tenth of μ² for the first round leaves σ = 3.36 Δ for the second."""
    job = "--clients 200 --epsilon 1 --delta 1e-4 --dimension 2 --statistic second-moments --statistic regression"
    found = answer(f"{job} --shares 0.1,0.9")
    assert found["rounds"][1]["noise_multiplier"] == pytest.approx(3.36, abs=0.005)


def test_the_curve_is_of_the_whole_job(answer: Any) -> None:
    found = answer("--clients 50 --epsilon 1 --delta 1e-6 --statistic sum --statistic mean")
    assert [point["delta"] for point in found["curve"]] == [10.0**-k for k in range(3, 13)]
    for point in found["curve"]:
        assert point["epsilon"] == epsilon_of(found["mu"], point["delta"])
        assert point["epsilon_with_also"] is None
    assert found["curve"][3]["epsilon"] == pytest.approx(1, rel=1e-5)


def test_other_spending_is_composed(answer: Any) -> None:
    found = answer("--clients 50 --epsilon 1 --delta 1e-6 --also laplace:0.1 --also randomised-response:0.5,4")
    releases = [Gaussian(found["mu"]), Laplace(0.1), RandomisedResponse(0.5, 4)]
    assert found["epsilon_with_also"] == epsilon_of_all(releases, 1e-6)
    assert 1 < found["epsilon_with_also"] < found["epsilon_charged_with_also"]
    charged = compose([found["mu"], mu_of_pure(0.1), mu_of_pure(0.5)])
    assert found["epsilon_charged_with_also"] == pytest.approx(epsilon_of(charged, 1e-6), rel=1e-9)
    assert found["epsilon_charged_apart_with_also"] == pytest.approx(1.6, rel=1e-6)
    assert found["curve"][3]["epsilon_with_also"] == found["epsilon_with_also"]
    assert [one["kind"] for one in found["also"]] == ["Laplace", "RandomisedResponse"]


def test_noise_is_reported_in_the_units_of_the_data(answer: Any) -> None:
    """A mean of two columns with ranges 120 and 50: noise in proportion, Δ = 2√2 half ranges."""
    found = answer("--clients 100 --tolerate 0 --statistic mean --bounds age=0:120,bmi=10:60")
    local = 2 * math.sqrt(2) / found["mu"] / math.sqrt(99)
    assert found["rounds"][0]["labels"] == ["age", "bmi", "complete rows"]
    noise = [local / 10 * 60, local / 10 * 25, local * 10 / math.sqrt(6)]
    assert found["rounds"][0]["noise_std"] == pytest.approx(noise, rel=1e-6)


def test_a_forecast_is_of_the_round_that_a_trainer_opens(answer: Any) -> None:
    """All statistics of columns with bounds: the same numbers are summed, with the same sensitivity and noise."""
    federation = TestFederation(0, 3).federation
    for name in ("sum", "mean", "moments", "second-moments", "regression", "phases"):
        given = {"statistic": name, "columns": ["a", "b"], "bounds": {"a": [0, 120], "b": [10, 60]}}
        given |= {"kind": "secure-sum", "epsilon": 1.0, "delta": 1e-5, "tolerate": 5, "clients": 100}
        opened = forecast(open_round(convert("[round]", given, RoundSettings), federation))
        options = f"--clients 100 --tolerate 5 --statistic {name} --columns a,b --bounds a=0:120,b=10:60"
        (entry,) = answer(options)["rounds"]
        for figure in ("dimension", "sensitivity", "bound", "sigma_sum", "ring_bits", "noise_of_mean"):
            assert entry[figure] == pytest.approx(getattr(opened, figure), rel=1e-12), (name, figure)


def test_the_best_weights_of_a_regression_are_offered_with_their_gain(run: Run, answer: Any) -> None:
    job = "--clients 200 --statistic regression --bounds a=-1:1,b=-1:1,y=-1:1 --parameter target_square=true"
    entry = answer(job)["rounds"][0]
    best = tuple(entry["best_weights"])
    weighted = answer(f"{job} --parameter weights={json.dumps(best).replace(' ', '')}")["rounds"][0]
    statistic = Regression(
        columns=("a", "b", "y"), centre=(0.0,) * 3, scale=(1.0,) * 3, bound=(1.0,) * 3, target_square=True, weights=best
    )

    def total(entry: dict[str, Any], weights: tuple[int, ...]) -> float:
        sizes = zip(statistic.block_sizes, weights, strict=True)
        return float(entry["sigma_sum"]) * math.sqrt(sum(size / weight**2 for size, weight in sizes))

    gain = 1 - total(weighted, best) / total(entry, (1, 1, 1))
    assert entry["best_weights_gain"] == pytest.approx(gain, rel=1e-3)
    assert 0 < gain < 0.5
    assert weighted["best_weights_gain"] == pytest.approx(0, abs=1e-12)
    assert client_sensitivity(statistic, 0, 24).l2 / 2**24 == pytest.approx(weighted["sensitivity"], rel=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_every_statistic_has_an_account(answer: Any, name: str) -> None:
    for dimension in ("", " --dimension 2"):
        found = answer(f"--clients 50 --statistic {name}{dimension}")
        assert found["rounds"][0]["statistic"] == name
        assert found["scale_factor"] == pytest.approx(50 / 44, rel=1e-6)


def test_a_gradient_is_planned_at_its_clip_alone(answer: Any) -> None:
    plain, options = "--clients 50 --statistic gradient", " --dimension 3 --parameter theta=[2,-1] --parameter clip=0.5"
    assert answer(plain)["sensitivity"] == pytest.approx(2, rel=1e-6)
    assert answer(plain + options)["sensitivity"] == pytest.approx(1, rel=1e-6)


def test_a_mixture_is_planned_whatever_its_components_are(answer: Any) -> None:
    plain, options = "--clients 50 --statistic mixture --dimension 2", " --parameter log_weights=[0,1,2]"
    assert answer(plain)["rounds"][0]["dimension"] == 2 * 5
    assert answer(plain + options)["rounds"][0]["dimension"] == 3 * 5
    assert answer(plain)["sensitivity"] == pytest.approx(math.sqrt(2 * (1 + 2 + 2)), rel=1e-6)
    assert answer(plain + options)["rounds"][0]["labels"][-1] == "r3·x2²"


def test_several_statistics_may_stand_in_one_option(answer: Any) -> None:
    assert answer("--clients 50 --statistic sum,mean") == answer("--clients 50 --statistic sum --statistic mean")


def test_a_histogram_has_the_requested_number_of_bins() -> None:
    assert named_statistic("histogram", Columns(dimension=3), {})[1]["edges"] == [0, 1, 2, 3]
    quarters = Columns(names=["age"], dimension=4, bounds={"age": [0.0, 100.0]})
    assert named_statistic("histogram", quarters, {})[1] == {"columns": ["age"], "edges": [0, 25, 50, 75, 100]}
    assert named_statistic("histogram", Columns(), {"edges": [1, 5]})[1]["edges"] == [1, 5]


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("gaussian:0.5", Gaussian(0.5)),
        ("laplace:0.1", Laplace(0.1)),
        ("laplace:0.1,64", Laplace(0.1, 64)),
        ("randomised-response:1,4", RandomisedResponse(1.0, 4)),
        ("unary-encoding:2", UnaryEncoding(2.0)),
        ("pure:0.3", PureDP(0.3)),
    ],
)
def test_kinds_of_other_spending(text: str, release: object) -> None:
    assert parse_also(text) == (release,)


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_the_output_explains_colluders(run: Run) -> None:
    code, output, _ = run("--clients", "100", "--tolerate", "10")
    text = " ".join(output.split())
    assert code == 0
    assert "c = 0: the guarantee holds against a single curious client that colludes with any 2 of" in text
    assert "colluding Compute nodes can leave clients out until 90 remain, so rely on c only" in text
    assert "fewer than 90 contributions is never released, so at most 10 clients may drop out" in text
    text = " ".join(run("--clients", "100", "--tolerate", "10", "--colluders", "4")[1].split())
    assert "fewer than 94 contributions is never released, so at most 6 clients may drop out" in text
    assert "against a curious client that colludes with 4 other clients and any 2 of" in text
    text = " ".join(run("--clients", "100", "--tolerate", "0")[1].split())
    assert "fewer than 100 contributions is never released, so no client may drop out. The guarantee holds" in text


def test_the_output_names_other_spending_and_better_weights(run: Run) -> None:
    _, output, _ = run("--delta", "1e-6", "--clients", "100", "--also", "pure:0.2")
    text = " ".join(output.split())
    assert "it costs them at most epsilon" in text
    assert "If their ledgers are charged for all of it, they count epsilon 1.502" in text
    _, output, _ = run("--delta", "1e-6", "--clients", "100", "--statistic", "regression")
    assert "--parameter weights=[" in output


def test_the_budget_shows_its_mu_and_the_smaller_mu_of_the_rounds(run: Run, answer: Any) -> None:
    """Shares of 0.3 and 0.3 leave √0.6 of the budget's μ to these rounds; the curve is theirs."""
    job = "--delta 1e-6 --clients 100 --statistic mean,sum --shares 0.3,0.3"
    found, mu = answer(job), mu_of(1.0, 1e-6)
    assert found["mu_budget"] == mu
    assert found["mu"] == pytest.approx(mu * math.sqrt(0.6), rel=2e-6)
    assert found["epsilon_spent"] == epsilon_of(found["mu"], 1e-6) == found["curve"][3]["epsilon"]
    text = " ".join(run(*job.split())[1].split())
    assert (
        f"in total (mu {at_least(mu)}), of which these rounds spend epsilon 0.7598 (mu {at_least(found['mu'])})" in text
    )
    whole = answer("--clients 100 --statistic mean,sum")
    assert 0.99999 < whole["epsilon_spent"] <= 1
    assert "of which" not in run("--clients", "100", "--statistic", "mean,sum")[1]
    assert answer("--clients 100")["epsilon_spent"] == 1


def test_the_signal_is_that_of_the_weakest_round_which_is_named(run: Run, answer: Any) -> None:
    job = "--clients 100 --statistic sum,mean,histogram --shares 0.6,0.1,0.3 --dimension 3"
    found = answer(job)
    assert found["weakest_round"] == 2
    signals = [entry["signal_to_noise"] for entry in found["rounds"]]
    assert signals[1] == min(signals)
    text = " ".join(run(*job.split())[1].split())
    assert "weakest in round 2, mean: a mean over all 100 clients that is a third of its bound is" in text
    assert f"is {signals[1]:.3g} standard deviations of its noise from 0" in text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sum", "a sum over all 100 clients that is a third of the largest possible is"),
        ("second-moments", "a mean square that is a third of the largest possible is"),
        ("regression", "a mean product of two columns that is a third of the largest possible is"),
        ("gradient", "a mean gradient that has a third of the clip in one coordinate is"),
        ("moments", "a mean or mean square that is a third of the largest possible is"),
        ("mixture", "a mean of one component's statistics that is a third of the largest possible is"),
        ("histogram", "a bin with a third of what all 100 clients contribute is"),
    ],
)
def test_each_statistic_has_its_own_description_of_the_signal(run: Run, name: str, message: str) -> None:
    output = " ".join(run("--clients", "100", "--statistic", name)[1].split())
    assert message in output
    assert ("weakest in round" in output, "a third of its bound" in output) == (False, False)


def test_the_noise_of_scaled_columns_names_its_units(run: Run, answer: Any) -> None:
    bounds = "--bounds age=0:120,y=0:300"
    for name in ("regression", "gradient"):
        job = f"--clients 100 --statistic {name}"
        assert answer(f"{job} {bounds}")["rounds"][0]["noise_std_units"] == "columns scaled to ±1"
        assert answer(f"{job} --bound 3")["rounds"][0]["noise_std_units"] == "data"
        scaled = answer(f"{job} --bound 3 --parameter scale=[2,1]")["rounds"][0]["noise_std_units"]
        assert scaled == "scaled columns"
    assert answer(f"--clients 100 --statistic mean {bounds}")["rounds"][0]["noise_std_units"] == "data"
    output = run("--clients", "100", "--statistic", "regression", *bounds.split())[1]
    assert "regression (columns scaled to ±1), standard deviation of the noise in each: age·age " in " ".join(
        output.split()
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--delta 0.5", ["delta 0.5 is at least 1/N = 0.01: such a delta permits publishing one client's data"]),
        ("--delta 0.01", ["delta 0.01 is at least 1/N"]),
        ("--delta 0.0099", []),
        ("--epsilon 10", []),
        (
            "--epsilon 800 --delta 1e-300",
            ["epsilon 800 protects little: a result may still be e^800 = 10^347.5 times"],
        ),
        ("--epsilon 12", ["epsilon 12 protects little: a result may still be e^12 = 10^5.212 times as likely"]),
        ("--epsilon 190 --delta 0.5", ["delta 0.5 is", "epsilon 190 protects little"]),
    ],
)
def test_figures_that_promise_little_are_accepted_with_a_warning(
    run: Run, answer: Any, options: str, expected: list[str]
) -> None:
    found = answer(f"--clients 100 {options}")["warnings"]
    assert len(found) == len(expected)
    assert all(warning.startswith(start) for warning, start in zip(found, expected, strict=True))
    output = run("--clients", "100", *options.split())[1]
    assert output.count("\nwarning") == len(expected)


@pytest.mark.long
def test_a_reader_of_the_tables_head_gets_the_whole_json_and_141(tmp_path: Path) -> None:
    """rich and click both turn a broken pipe into an exit of 1."""
    for options in (["--json", str(tmp_path / "a.json")], ["--json", "-"], ["--help"]):
        command = [sys.executable, "-m", "dca_proto.cli", "account", "--clients", "100", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert b"Traceback" not in process.stderr.read()
        assert process.returncode == 141
    assert json.loads((tmp_path / "a.json").read_text())["clients"] == 100


def test_json_alone_is_on_stdout_and_the_table_beside_it(run: Run) -> None:
    code, output, error = run("--clients", "30", "--json", "-")
    assert code == 0
    assert json.loads(output)["clients"] == 30
    assert "noise multiplier" in error
    code, output, error = run("--clients", "30", "--json", "figures.json")
    assert json.loads(Path("figures.json").read_text())["clients"] == 30
    assert "noise multiplier" in output


@pytest.mark.long
def test_the_picture_is_a_png(run: Run) -> None:
    job = ("--clients", "60", "--tolerate", "7", "--statistic", "sum", "--statistic", "histogram", "--dimension", "4")
    assert run(*job, "--plot", "cost.png")[0] == 0
    assert Path("cost.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert Path("cost.png").stat().st_size > 20_000


def test_help_has_examples(run: Run) -> None:
    code, output, _ = run("--help")
    assert code == 0
    assert "dca account --epsilon 1 --delta 1e-6 --clients 500 --tolerate 50" in output
