"""`dca account` refuses in one line what cannot be, and names what would do.

Everything is deterministic: no test here has a chance of a false alarm.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dca_proto.cli import main
from dca_proto.errors import UsageError
from dca_proto.jobs.forecast import EXACT
from dca_proto.protocol.params import Limits
from dca_proto.protocol.trainer.request import OpenRound
from dca_proto.protocol.wire.kinds import SecureSum

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Calls `dca account` in a folder of its own: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(["account", *arguments])
        output, error = capsys.readouterr()
        return code, output, error

    return call


@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        ("--epsilon 0", "epsilon is 0.0, expected a finite number > 0", 2),
        ("--epsilon nan", "epsilon is nan", 2),
        ("--epsilon 500", "epsilon 500 at delta 1e-05 is more than can be planned with, 284; that protects", 2),
        ("--delta 0", "delta is 0.0, expected a number in (0, 1), such as 1e-6", 2),
        ("--delta 1", "delta is 1.0", 2),
        ("--tolerate 49", "lower tolerate to at most 48, or find at least 51 clients", 2),
        ("--tolerate -1", "tolerate is -1; give a number from 0 to 10000000", 2),
        ("--tolerate 5 --colluders 6", "c = 6 colluders exceed T = 5; lower colluders to 5, or raise tolerate to 6", 2),
        ("--colluders -1", "colluders is -1; give a number from 0 to 10000000", 2),
        ("--computes 1", "M = 1 Compute nodes; use 2 to 64 computes", 2),
        ("--bound inf", "is inf; give a finite number above 0", 2),
        ("--bound -1", "is -1; give a finite number above 0", 2),
        ("--bounds x=0:inf", "column 'x': bounds 0:inf are not an interval; expected finite LO < HI", 5),
        ("--bound 1e-7", "expected 8 to 2^40: use at least 4 more fraction bits", 2),
        ("--fraction-bits 7", "choose an even number from 0 to 40", 2),
        ("--fraction-bits 40 --bound 9000", "use fewer fraction bits", 2),
        ("--dimension 0", "--dimension 0: expected 1 to 4096 columns", 2),
        ("--dimension 1000000000", "--dimension 1000000000: expected 1 to 4096 columns", 2),
        ("--dimension 65537 --statistic histogram", "--dimension 65537: expected 1 to 65536 bins", 2),
        ("--dimension 2 --columns a,b", "--columns names the columns of a sum, and so excludes --dimension", 2),
        ("--dimension 2 --bounds a=0:1", "--bounds names the columns of a sum, and so excludes --dimension", 2),
        ("--bound 1 --bounds a=0:1", "--bound and --bounds exclude each other", 2),
        ("--columns a,b --bounds a=0:1", "public bounds are missing for: b", 2),
        ("--statistic summ", "--statistic 'summ' is unknown (did you mean 'sum'?); known: ", 2),
        ("--parameter weights=[1]", "--parameter weights: no such parameter of sum", 2),
        ("--statistic mean,", "--statistic 'mean,': a name is missing beside a comma", 2),
        ("--statistic histogram --parameter edgs=[1]", "no such parameter of histogram (did you mean 'edges'?)", 2),
        ("--statistic histogram --parameter edges=3", "edges is a whole number, expected a list", 2),
        ("--statistic regression --dimension 1", "no feature: name the features", 2),
        ("--bounds age", "--bounds 'age': expected COL=LO:HI,... or the name of an existing TOML file", 2),
        ("--parameter weights", "expected NAME=JSON", 2),
        ("--shares 0.5,0.5", "shares: found 2, expected one for each of 1 rounds", 2),
        ("--shares 1.5", "shares of the budget add up to 1.5, expected at most 1", 2),
        ("--shares half", "--shares 'half': expected one number for each round", 2),
        ("--also gauss:1", "'gauss' is unknown (did you mean 'gaussian'?); expected one of gaussian:MU, laplace:", 2),
        ("--also laplace:x", "--also 'laplace:x': expected laplace:EPSILON", 2),
        ("--also laplace:1,2,3", "--also 'laplace:1,2,3': expected laplace:EPSILON", 2),
        ("--also pure:-1", "--also 'pure:-1': epsilon is -1, expected 1e-09 to 100", 2),
        ("--plot cost.txt", "--plot cost.txt: expected a name that ends in .png", 2),
        ("--plot missing/cost.png", "cannot write missing/cost.png", 8),
        ("--json missing/x.json", "cannot write missing/x.json", 8),
        ("--json full.json", "cannot write full.json: No space left on device", 8),
        ("--plot full.png", "cannot write full.png: No space left on device", 8),
        ("--rows-max -1", "rows_max is -1", 2),
        ("--every day", "--every and --for belong together, as in --every day --for 1y", 2),
        ("--for 1y", "--every and --for belong together", 2),
        ("--every days --for 1y", "--every 'days' is unknown (did you mean 'day'?); expected hour, day, week", 2),
        ("--every day --for 1", "--for '1': expected a number of days, weeks or years, such as 90d, 26w or 1y", 2),
        ("--every day --for 0d", "--for '0d': expected a number of days", 2),
        ("--every hour --for 2y", "--every hour --for 2y: found 17,520 times, expected at most 16,384", 2),
        ("--also laplace:0.1*", "--also 'laplace:0.1*': expected a number after *", 2),
        ("--also laplace:0.1*0", "--also 'laplace:0.1*0': expected a number after *", 2),
        ("--kind node", "kind 'node' is unknown; use one of secure-sum", 2),
        ("--kind ldp-report", "mechanism '' makes no reports; use one of", 2),
        ("--kind node-release --tolerate 3", "leave out tolerate, colluders and computes", 2),
        ("--kind node-release --rows-max 9 --plot a.png", "--plot draws what T costs in a secure sum", 2),
    ],
)  # fmt: skip
def test_bad_input_is_a_one_line_error_that_names_the_change(run: Run, options: str, message: str, code: int) -> None:
    for name in ("full.json", "full.png"):
        Path(name).symlink_to("/dev/full")
    given, output, error = run("--clients", "50", *options.split())
    assert (given, bool(output)) == (code, "full.png" in options), "the result comes before its picture"
    assert error.startswith("dca: ")
    assert error.count("\n") == 1
    assert message in error


@pytest.mark.parametrize(
    ("clients", "message"),
    [("0", "clients is 0; give their number N, 1 to 10000000"), ("1", "find at least 2 clients")],
)
def test_too_few_clients_are_refused(run: Run, clients: str, message: str) -> None:
    code, _, error = run("--clients", clients)
    assert code == 2
    assert message in error


def test_an_impossible_round_of_several_is_named(run: Run) -> None:
    job = "--clients 50 --statistic sum --statistic mean --shares 0.001,0.999 --epsilon 30 --fraction-bits 2"
    code, _, error = run(*job.split())
    assert code == 2
    assert "round 2, mean at epsilon 29.98: a noise share's standard deviation is" in error


@pytest.mark.parametrize(
    "options",
    [
        "--bound 1e-6",
        "--bound 1e-3 --fraction-bits 12 --rows-max 1",
        "--statistic regression --dimension 3 --fraction-bits 4 --epsilon 20",
        "--statistic histogram --dimension 7 --fraction-bits 0",
        "--dimension 400 --fraction-bits 2 --epsilon 40 --delta 0.1",
        "--statistic second-moments --dimension 5 --fraction-bits 6 --epsilon 10 --clients 4000",
    ],
)
def test_the_fraction_bits_that_a_refusal_asks_for_are_enough(run: Run, options: str) -> None:
    given = ["--clients", "500", *options.split()]
    code, _, error = run(*given)
    assert code == 2
    more = int(error.partition("use at least ")[2].split(maxsplit=1)[0])
    bits = int(given[given.index("--fraction-bits") + 1]) if "--fraction-bits" in given else 24
    assert run(*given, "--fraction-bits", str(bits + more))[0] == 0


@pytest.mark.parametrize(("bound", "fewer", "by_clients"), [(2.0**11, 4, True), (2.0**15, 8, False)])
def test_a_ring_that_would_overflow_is_refused_with_a_value_that_fits(
    bound: float, fewer: int, by_clients: bool
) -> None:
    """2^18 or 2^19 clients and 36 bits: the sum reaches 2^65 or 2^70. What the refusal names does fit.

    In the second case no N would do: each of fewer clients would have to add more noise than the sampler draws.
    """
    computes = tuple(bytes([i]) * 16 for i in range(2))
    terms: dict[str, Any] = {"round_id": bytes(16), "statistic": "sum", "epsilon": 40.0, "delta": 0.1}
    columns = {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [bound]}
    clients = 2**18 if by_clients else 2**19

    def at(clients: int, bits: int) -> int:
        kind = SecureSum(clients=clients, most=clients)
        request = OpenRound(**terms, kind=kind, computes=computes, parameters=columns, fraction_bits=bits, rows_max=1)
        validated = request.draft(EXACT, Limits())[1].kind
        assert isinstance(validated, SecureSum)
        return validated.n_max

    with pytest.raises(UsageError, match=rf"less than 2\^63: use at least {fewer} fewer fraction bits") as refusal:
        at(clients, 36)
    assert at(clients, 36 - fewer) == clients
    assert ("or N of at most" in str(refusal.value)) == by_clients
    if by_clients:
        most = int(str(refusal.value).rpartition(" ")[2])
        assert at(most, 36) == most
        with pytest.raises(UsageError):
            at(most + 2, 36)
