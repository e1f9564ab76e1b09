"""A study from table 1 to survival curve, with one budget for all of it."""

import marimo

app = marimo.App()


@app.cell
def _():
    import marimo as mo

    mo.md(
        """
        # A study: from table 1 to the survival curve

        600 patients of a simulated trial each hold one row: arm, age, severity, months of follow-up and whether they
        died. The study asks three questions in three secure sums. All of them together spend ε = 4, δ = 1e-5.
        """
    )
    return (mo,)


@app.cell
def _():
    from math import hypot

    import numpy as np

    from dca_proto.jobs.job import JobTerms
    from dca_proto.privacy.budget import Budget
    from dca_proto.testing import seeded
    from emulator.ideal import IdealSwarm
    from inference.datasets import simulated_trial
    from inference.jobs import find
    from inference.jobs.base import Conditions
    from inference.rounds import run

    trial, whole = simulated_trial(), Budget(4.0, 1e-5)
    clients = len(trial.y)
    shares = {"describe": 0.4, "compare": 0.2, "survival": 0.4}
    spent = {name: whole.share(part) for name, part in shares.items()}
    mu = hypot(*(cost.mu for cost in spent.values()))

    def asked(name, **settings):
        """Ask a job's question with its part of the budget; return the answer, and the one without privacy."""
        job, cost = find(name), spent[name]
        own = job.settings(**settings)
        job.check(trial.schema, own)
        terms = JobTerms(epsilon=cost.epsilon, delta=cost.delta, clients=clients, tolerate=60, computes=(b"a", b"b"))
        known = Conditions(clients, 60, cost.mu, np.random.default_rng(1))
        swarm = IdealSwarm(trial.rows, trial.schema.columns, terms, random=seeded(name))
        learned = run(job.make(trial.schema, own, known), swarm)
        return job.finish(learned, trial.schema, own, known), job.reference(trial, own)

    return asked, mu, spent, trial, whole


@app.cell
def _(mo, mu, spent, whole):
    mo.md(
        "The budget is split by squared μ of Gaussian differential privacy, which adds up over rounds:\n\n"
        + "| question | alone, it costs |\n| --- | --- |\n"
        + "\n".join(f"| `{name}` | ε = {cost.epsilon:.2f} |" for name, cost in spent.items())
        + f"\n| all | μ = {mu:.3f} of {whole.mu:.3f}: ε = {whole.epsilon:g} |"
    )
    return


@app.cell
def _(asked, mo, trial):
    described, described_exactly = asked("describe", group="arm")

    def interval(figure):
        """Return the ends of an interval, as text."""
        return f"{figure.interval[0]:.3g} to {figure.interval[1]:.3g}"

    cells = described.extras()["cells"]
    rows = [
        f"| {one.name} | {one.marginal.mean:.3g} | {interval(one.marginal)} | {one.unit} |"
        for one in described.estimates(trial.schema)
        if cells[one.name]["column"] in ("age", "severity") and "quartile" not in one.name
    ]
    mo.md(
        "## Table 1\n\nWhat was known at the start. The same sum has the outcome and quartiles, too.\n\n"
        "| figure | private | 95 % interval | unit |\n| --- | --- | --- | --- |\n" + "\n".join(rows)
    )
    return described, described_exactly


@app.cell
def _(asked, mo):
    compared, compared_exactly = asked("compare", group="arm", column="severity")
    (test,), (exact_test,) = compared.extras()["tests"], compared_exactly.extras()["tests"]
    mo.md(
        f"""
        ## Are the arms alike at baseline?

        {test["test"]} of severity: p = {test["p_value"]:.2g} (without privacy {exact_test["p_value"]:.2g}). The
        variance of the test includes the noise.
        """
    )
    return exact_test, test


@app.cell
def _(asked):
    survival, survival_exactly = asked("survival", group="arm", event="event", times=(6, 12, 18, 24, 30, 36))
    return survival, survival_exactly


@app.cell
def _(mo, survival, survival_exactly):
    from matplotlib.figure import Figure

    curves, exact = survival.predictor, survival_exactly.predictor
    months = (6, 12, 18, 24, 30, 36)
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for _arm, _colour in enumerate(("#0072B2", "#D55E00")):
        _low, _high = curves.band()[:, _arm]
        axes.fill_between(months, _low, _high, color=_colour, alpha=0.2)
        axes.plot(months, curves.survival[_arm], "o-", color=_colour, label=f"arm {_arm}, private")
        axes.plot(months, exact.survival[_arm], "--", color=_colour, label=f"arm {_arm}, without privacy")
    axes.set(xlabel="months", ylabel="surviving share", ylim=(0, 1))
    axes.legend()
    mo.vstack(
        [
            mo.md(f"## Survival\n\nLog-rank test: p = {curves.log_rank.p_value:.2g}. Bands include the noise."),
            figure,
            mo.md("Dashed curves, and all figures without privacy, are exact: do not publish them."),
        ]
    )
    return curves, exact


if __name__ == "__main__":
    app.run()
