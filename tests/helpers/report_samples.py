"""Invented runs of every kind, as commands write them with `--json`, to make pages of."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import msgspec
from scaling_samples import scaling

from dca_proto.results.run import Run
from inference.jobs.estimates import separated

INVARIANTS = (
    "one partial sum per round",
    "enough contributions",
    "exact sum",
    "budget recorded first",
    "views independent of data",
    "hostile input is harmless",
    "a round never hangs",
    "killed actors lose nothing",
    "same seed, same trace",
)


def swarm() -> dict[str, Any]:
    """A regression learned in two rounds."""
    return separated(whole_swarm())


def run_of(plain: dict[str, Any]) -> Run:
    """The record of a run, without what it has learned."""
    return msgspec.convert(plain, Run)


def whole_swarm() -> dict[str, Any]:
    """The same, as the command has it before it writes it."""
    return {
        "kind": "swarm",
        "clients": 342,
        "computes": 3,
        "tolerate": 34,
        "colluders": 0,
        "epsilon": 2.0,
        "delta": 1e-5,
        "epsilon_spent": 1.9999977664060253,
        "private": True,
        "not_private_because": [],
        "mechanism": "distributed-discrete-gaussian",
        "broker": "mosquitto",
        "broker_version": "2.0.11",
        "seed": 0,
        "ok": True,
        "error": None,
        "coefficients": [
            coefficient("bmi", "points per kg/m²", 6.156, 3.046, 6.416, 0.785),
            coefficient("bp", "points per mmHg", 1.687, 1.061, 0.984, 0.246),
            coefficient("s5", "points per ln(mg/dl)", 39.97, 28.81, 48.02, 6.88),
        ],
        "intercept": figures(-352.8, 108.7, -332.5, 30.5),
        "test": {"rows": 99, "rmse_private": 57.37, "rmse_nonprivate": 52.62, "rmse_zero": 77.83, "unit": "points"},
        "rounds": [
            round_("second-moments", 4, 2.0, 0.1586, 169.4, absent=[29, 39, 72, 93, 97, 119]),
            {**round_("regression", 15, 6.067, 0.4758, 173.2, absent=[0, 21, 22, 27, 54, 298]), **RELEASED},
        ],
        "n_min": 308,
        "wall_s": 3.987,
    }


RELEASED = {
    "value": [340.1, -22.6, 118.5, 41.0, 7.7, 88.4, -12.9, 31.2, 4.4, 61.0, -1.3, 54.0, 19.9, 140.8, 96.1],
    "slowest": [{"client": 17, "s": 1.42}, {"client": 203, "s": 1.31}],
    "declined": {"epsilon: found 2, expected at most 0.5": 3},
}


def coefficient(name: str, unit: str, mean: float, sd: float, plain: float, plain_sd: float) -> dict[str, Any]:
    return {"name": name, "unit": unit, **figures(mean, sd, plain, plain_sd)}


def figures(mean: float, sd: float, plain: float, plain_sd: float) -> dict[str, Any]:
    return {
        "estimate": mean,
        "estimate_sd": sd,
        "interval_95": [mean - 1.96 * sd, mean + 1.96 * sd],
        "prior_interval_95": None,
        "contraction": None,
        "nonprivate": plain,
        "nonprivate_sd": plain_sd,
        "nonprivate_interval_95": [plain - 1.96 * plain_sd, plain + 1.96 * plain_sd],
    }


def round_(
    name: str, dimension: int, sensitivity: float, mu: float, variance: float, *, absent: list[int]
) -> dict[str, Any]:
    return {
        "statistic": name,
        "dimension": dimension,
        "clients": 342,
        "computes": ["compute-1", "compute-2", "compute-3"],
        "arrived": 342 - len(absent),
        "closed": "quiet" if absent else "all",
        "declined": {},
        "wall_s": 1.80,
        "phases": {"collect": 1.782, "agree": 0.018},
        "messages": 2714,
        "bytes": 681_286,
        "ok": True,
        "contributors": 342 - len(absent),
        "dropped": len(absent),
        "absent": [f"{client:032x}" for client in absent],
        "absent_clients": absent,
        "sigma_local": 1.219,
        "noise_variance": variance,
        "sensitivity": sensitivity,
        "epsilon": 0.563,
        "mu": mu,
    }


def aborted_swarm() -> dict[str, Any]:
    """Return a run that was aborted by too many dropouts."""
    lost = {
        **round_("second-moments", 4, 2.0, 0.16, 170.0, absent=[]),
        "ok": False,
        "contributors": 300,
        "n_min": 308,
        "error": "compute-2 aborted the round: 300 clients contributed, 308 were needed (too-few)",
        "late": 40,
        "dropped": 2,
        "sigma_local": None,
        "noise_variance": None,
        "phases": {"collect": 1.2},
    }
    for key in ("absent", "absent_clients", "sensitivity", "epsilon", "mu"):
        del lost[key]
    run = whole_swarm()
    del run["coefficients"], run["intercept"]
    aborted = "compute-2 aborted the round: 300 clients contributed, 308 were needed (too-few)"
    reason = f"{aborted}; its charge came back to the account"
    found = {
        **run,
        "ok": False,
        "error": reason,
        "test": None,
        "rounds": [lost],
        "epsilon_spent": 0.0,
    }
    return separated(found)


def trial() -> dict[str, Any]:
    """Return the survival curves of two arms, with a warning."""
    found = whole_swarm()
    del found["intercept"], found["coefficients"], found["test"]
    curves = [(arm, month, 1 - month * (2 - arm) / 60) for arm in (0, 1) for month in range(3, 30, 3)]
    points = [
        {
            **coefficient(f"S({month}), arm {arm}", "", mean, 0.02, mean - 0.01, 0.01),
            "standard": {"unit": "probability", "scale": 1.0, "centre": 0.0},
            "at": {"series": f"arm {arm}", "x": float(month), "axis": "time (months)"},
        }
        for arm, month, mean in curves
    ]
    means = [coefficient(f"mean to 27, arm {arm}", "months", 16.5 + 3 * arm, 1.1, 16.2, 0.8) for arm in (0, 1)]
    learned: Any = {
        **found,
        "job": "survival",
        "estimates": [*points, *means],
        "log_rank": {"statistic": 10.52, "degrees": 1, "p_value": 0.0012},
        "warnings": ["a band is 0.6 wide: little was learned there; give fewer intervals or a larger epsilon"],
    }
    return separated(learned)


def fleet() -> dict[str, Any]:
    """Return a run of one round with ten thousand clients."""
    run = swarm()
    for key in ("coefficients", "intercept", "not_covered_by_epsilon"):
        del run[key]
    one = {
        **round_("sum", 10, 2.0, 0.4, 26.0, absent=[]),
        "clients": 10_000,
        "arrived": 9_980,
        "contributors": 9_980,
        "dropped": 20,
    }
    one |= {"value": [1002.2, 994.1, 1000.9], "exact": [998.0, 998.0, 998.0], "vanished_clients": [4, 9_000]}
    del one["absent_clients"]
    return {
        **run,
        "clients": 10_000,
        "tolerate": 100,
        "rounds": [one],
        "wall_s": 41.3,
        "connections": "shared",
        "processes": 2,
        "peak_rss_mb_by_process": {"trainer": 96.0, "compute": 120.5, "client 1": 410.5, "client 2": 402.0},
        "core_s_by_role": {"client": 31.0, "compute": 12.4, "trainer": 3.1, "broker": 4.4},
        "connect_s": 12.1,
        "sessions_s": 13.4,
        "sessions_core_s": 20.2,
        "roles": {
            "client": {"messages": 40_112, "bytes": 9_811_204},
            "compute": {"messages": 31, "bytes": 402_113},
            "trainer": {"messages": 12, "bytes": 330_880},
        },
    }


def emulation() -> dict[str, Any]:
    """Return a scenario with faults in which all invariants hold."""
    return {
        "kind": "emulation",
        "ok": True,
        "seed": 17,
        "digest": "9f2c1a77d0be4410" * 4,
        "outcome": {"result": "ok", "live": True, "further": "completed", "why": [],
                    "rounds": [completed("a1b2c3d4", 0), aborted("e5f60718", 9_000)]},
        "invariants": [
            {"number": place, "name": name, "checked": 40 * place, "ok": True, "detail": None}
            for place, name in enumerate(INVARIANTS, 1)
        ],
        "faults": [
            {"kind": "vanish", "actor": "client 4", "role": "client", "at_ms": 2_100, "until_ms": None,
             "reached": True, "phase": "collect"},
            {"kind": "partition", "actor": "compute 1", "role": "compute", "at_ms": 3_000, "until_ms": 5_500,
             "reached": True, "phase": "collect"},
            {"kind": "kill", "actor": "trainer", "role": "trainer", "at_ms": 6_100, "until_ms": 6_800,
             "reached": True, "phase": "collect"},
            {"kind": "disk-full", "actor": "compute 0", "role": "compute", "at_ms": 9_000, "until_ms": None,
             "reached": False, "phase": ""},
            {"kind": "equivocate", "actor": "compute 2", "role": "compute", "at_ms": 7_700, "until_ms": None,
             "reached": True, "phase": "collect"},
        ],
        "options": {"clients": 24, "computes": 3, "network": {"loss": 0.02, "delay_ms": 40}, "seed": 17,
                    "adversaries": [{"kind": "two-faced", "actor": "client 0", "amount": 0}]},
        "traffic": {"client": {"messages": 412, "bytes": 88_120}, "compute": {"messages": 77, "bytes": 21_404},
                    "trainer": {"messages": 20, "bytes": 9_310}},
        "drops": [{"client": 4, "at_ms": 2_100, "phase": "collect"}, {"client": 9, "at_ms": 4_400, "phase": "collect"},
                  {"client": 12, "at_ms": 4_450, "phase": "collect"}],
        "last_facts": [f"{12_000 + place} ms compute-0 RoundFailed(reason='too-few')" for place in range(12)],
        "replay": "dca emulate replay 17",
        "wall_s": 0.212,
        "virtual_s": 14.5,
    }  # fmt: skip


def completed(round_id: str, begin: int) -> dict[str, Any]:
    return {
        "round_id": round_id,
        "result": "completed",
        "reason": None,
        "clients": 24,
        "contributors": 21,
        "needed": 20,
        "epsilon": 1.0,
        "noise_variance": 78.4,
        "noise_floor": 71.4,
        "phases": {
            "collect": [begin, begin + 8_000],
            "commit": [begin + 8_000, begin + 8_300],
        },
    }


def aborted(round_id: str, begin: int) -> dict[str, Any]:
    return {
        "round_id": round_id,
        "result": "aborted",
        "reason": "too-few: 18 contributed, 20 were needed",
        "clients": 24,
        "contributors": 18,
        "needed": 20,
        "epsilon": 1.0,
        "noise_variance": None,
        "noise_floor": None,
        "phases": {"collect": [begin, begin + 5_500]},
    }


def broken_emulation() -> dict[str, Any]:
    """Return a scenario with one broken invariant."""
    run = emulation()
    run["invariants"][2] |= {"ok": False, "detail": "round a1b2c3d4: coordinate 3 of the sum is 912, expected 911"}
    return {
        **run,
        "ok": False,
        "outcome": {**run["outcome"], "result": "broken", "live": False, "why": ["round 2 is open"]},
    }


def sweep() -> dict[str, Any]:
    """Return a sweep of many scenarios, two of which failed."""
    shrunk = {"clients": 3, "computes": 2, "faults": [{"kind": "kill", "actor": "compute 0"}]}
    return {
        "kind": "sweep",
        "ok": False,
        "seeds": [1, 2000],
        "run": 2000,
        "failed": [
            {"seed": 812, "invariant": 3, "detail": "the sum of round 1 is off by one", "shrunk": shrunk,
             "replay": "dca emulate replay 812"},
            {"seed": 1907, "invariant": 7, "detail": "round 1 had no end", "shrunk": None,
             "replay": "dca emulate replay 1907"},
        ],
        "coverage": {"vanish": 5120, "late": 2210, "slow": 1804, "wrong-clock": 940, "kill-compute": 871,
                     "kill-trainer": 610, "partition": 402, "spoofed": 377, "equivocate": 120, "torn-write": 61,
                     "disk-full": 0},
        "checked": {str(place): 310 * place if place < 9 else 0 for place in range(1, 10)},
        "invariants": dict(zip(map(str, range(1, 10)), INVARIANTS, strict=True)),
        "transitions": {"trainer: idle, announce": 2000, "trainer: open, forget": 0},
        "rounds": {"completed": 2904, "aborted": 1077},
        "interrupted": False,
        "wall_s": 371.0,
        "scenarios_per_s": 5.39,
    }  # fmt: skip


def audit(**attack: Any) -> dict[str, Any]:
    """Return an audit that does not refute the claim, with parts of its attack changed."""
    mu, sd, normal = 0.237, 8.45, NormalDist()
    edges = [-40 + place for place in range(81)]
    counts = [
        [round(1e5 * (normal.cdf((edge + 1 - at) / sd) - normal.cdf((edge - at) / sd))) for edge in edges[:-1]]
        for at in (1.0, -1.0)
    ]
    rates = [place / 100 for place in range(1, 100)]
    coalition = {"clients": 4, "computes": 2, "broker": True}
    return {
        "kind": "audit",
        "setting": {"epsilon": 1.0, "delta": 1e-6, "coalition": coalition},
        "covered": True,
        "mu_claimed": mu,
        "noise": {"unknown": 6, "needed": 6, "planned": 71.39, "floor": 71.39, "epsilon": 1.0},
        "attack": {
            "confidence": 0.95,
            "epsilon_lower_gdp": 0.882,
            "mu_lower": 0.211,
            "epsilon_lower_cp": 0.506,
            "threshold_gdp": 0.31,
            "threshold_cp": 18.0,
            "line": [1.0],
            "variance": 71.21,
            "variance_ratio": 0.9975,
            "variance_interval": [70.77, 71.65],
            "least_variance": 71.21,
            "least_variance_interval": [70.77, 71.65],
            "least_line": [1.0],
            "lines": 1,
            "variance_noticeable": 0.012,
            "mean_variance": 71.21,
            "mean_variance_interval": [70.77, 71.65],
            "mean_noticeable": 0.012,
            "distributions": {"edges": edges, "counts": counts},
            "trade_off": {
                "false_positives": [1.0, *reversed(rates), 0.0],
                "false_negatives": [
                    0.0, *(normal.cdf(normal.inv_cdf(1 - rate) - 0.23) for rate in reversed(rates)), 1.0,
                ],
            },
            **attack,
        },
        "shape": {"draws": {"noise of single clients": 100_000}, "tests": 504, "p_value": 0.6},
        "masks_p": 0.96,
        "verdict": "stands",
        "evidence": [],
        "doubts": [],
        "sentence": "There is no evidence against the claim. The coalition proves mu 0.211 of the 0.237 claimed.",
        "audited": "ideal functionality",
        "moved": [],
        "runs": 100_000,
        "pilot_runs": 1000,
        "seconds": 1.9,
    }  # fmt: skip


def coalition() -> dict[str, Any]:
    """Return an audit of all Compute nodes together, which recover values."""
    found = audit()
    members = {"clients": 8, "omitting": 1, "computes": 3, "broker": True}
    recovered = {"truth": [0.5, -1.0], "once": [3.1, -2.2], "mean": 0.49, "error": 0.1, "deviation": 3.2}
    return {
        **found,
        "setting": {**found["setting"], "clients": 20, "tolerate": 5, "coalition": members},
        "covered": False,
        "noise": {"unknown": 1, "needed": 14, "planned": 5.1, "floor": 71.4, "epsilon": 4.21},
        "masks_p": 1e-9,
        "messages": {
            "sees": ["sealed shares of all clients", "3 of 3 shares each, which look random", "the noisy sum"],
            "contributors": 20, "needed": 15, "rounds": 400, "released": 400, "same_traffic": True,
            "tests": [{"of": "the client's masked vectors", "against": "uniform", "p_value": 1e-10}],
            "recovered": recovered,
        },
        "verdict": "not covered",
        "sentence": "All Compute nodes together recover each value. The claim does not cover this coalition.",
        "audited": "protocol",
        "runs": 200,
    }  # fmt: skip


def iterations() -> list[dict[str, Any]]:
    """A score that rises; the first iteration has none."""
    scores = [None, 0.91, 0.95, 0.97, 0.975]
    return [{"number": k, "name": "held-out AUC", "value": value} for k, value in enumerate(scores, 1)]


def scores(nonprivate: float | None) -> dict[str, Any]:
    """Return the scores of a classifier."""
    auc = {"name": "AUC", "private": 0.975, "nonprivate": nonprivate, "constant": 0.5, "higher_is_better": True}
    return {"rows": 99, "scores": [auc, {**auc, "name": "log likelihood", "private": -0.2, "constant": -0.69}]}


def iterative_swarm() -> dict[str, Any]:
    """A classifier learned in mini-batches, one round of which was aborted."""
    steps = [{**round_("gradient", 4, 0.9, 0.1, 20.0, absent=[]), **RELEASED} for _ in range(13)]
    aborted = dict.fromkeys(("contributors", "noise_variance", "value")) | {"ok": False, "n_min": 90}
    run = {
        **whole_swarm(),
        "job": "logistic",
        "batch": 100,
        "n_min": 66,
        "test": scores(0.99),
        "iterations": iterations(),
        "rounds": [round_("moments", 6, 0.9, 0.1, 20.0, absent=[]), *steps, {**steps[0], **aborted}],
    }
    return separated(run)


def learned() -> dict[str, Any]:
    """Return the results of a real federation's trainer, which have no non-private comparison."""
    return separated(whole_learned())


def whole_learned() -> dict[str, Any]:
    """The same, as the command has it before it writes it."""
    held = {"number": 1, "statistic": "moments", "ok": True, "contributors": 38, "clients": 40}
    unknown = dict.fromkeys(
        ("prior_interval_95", "contraction", "nonprivate", "nonprivate_sd", "nonprivate_interval_95")
    )
    return {
        "kind": "learn",
        "ok": True,
        "error": None,
        "job": "logistic",
        "federation": "demo",
        "clients": 40,
        "computes": 3,
        "tolerate": 4,
        "n_min": 36,
        "private": True,
        "epsilon": 4.0,
        "delta": 1e-5,
        "rounds": [
            {**held, "dimension": 6, "noise_variance": 4.0},
            {**held, "number": 2, "statistic": "gradient", "dimension": 4, "noise_variance": 1.0, "attempts": 2},
            {
                "number": 3,
                "statistic": "gradient",
                "ok": False,
                "attempts": 3,
                "error": "too few",
            },
        ],
        "iterations": iterations(),
        "coefficients": [
            {
                "name": "a",
                "unit": "log odds",
                "estimate": 3.1,
                "estimate_sd": 1.1,
                "interval_95": [0.944, 5.256],
                **unknown,
            }
        ],
        "intercept": {"estimate": -0.2, "estimate_sd": None, "interval_95": None, **unknown},
        "stopped": "too few",
        "test": scores(None),
    }


SAMPLES = {
    "swarm": swarm,
    "iterative-swarm": iterative_swarm,
    "learned": learned,
    "aborted-swarm": aborted_swarm,
    "fleet": fleet,
    "trial": trial,
    "emulation": emulation,
    "broken-emulation": broken_emulation,
    "sweep": sweep,
    "coalition": coalition,
    "scaling": scaling,
    "audit": audit,
}
