"""A survival curve: months to death in two arms of a trial, from one private sum."""

import marimo

app = marimo.App()


@app.cell
def _():
    import marimo as mo

    mo.md(
        """
        # A survival curve

        600 patients of a simulated trial each hold one row: months of follow-up, whether they died, and their arm. One
        secure sum at ε = 2 gives both arms' survival curves, and the log-rank test.
        """
    )
    return (mo,)


@app.cell
def _():
    from dca_proto.jobs.job import JobTerms
    from dca_proto.testing import seeded
    from emulator.ideal import IdealSwarm
    from inference.datasets import simulated_trial
    from inference.estimators import PrivateKaplanMeier

    trial, months = simulated_trial(), (6, 12, 18, 24, 30, 36)
    terms = JobTerms(epsilon=2.0, delta=1e-5, clients=len(trial.y), tolerate=60, computes=(b"a", b"b"))
    swarm = IdealSwarm(trial.rows, trial.schema.columns, terms, random=seeded("1"))
    private = PrivateKaplanMeier(months, duration="months", group="arm", random_state=1).fit(swarm)
    exact = PrivateKaplanMeier(months, duration="months", group="arm", random_state=1).fit(trial.rows[:, [4, 0, 1]])
    return exact, months, private


@app.cell
def _(exact, months, private):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for _arm, _colour in enumerate(("#0072B2", "#D55E00")):
        _low, _high = private.band_[:, _arm]
        axes.fill_between(months, _low, _high, color=_colour, alpha=0.2)
        axes.plot(months, private.survival_[_arm], "o-", color=_colour, label=f"arm {_arm}, private")
        axes.plot(months, exact.survival_[_arm], "--", color=_colour, label=f"arm {_arm}, without privacy")
    axes.set(xlabel="months", ylabel="surviving share", ylim=(0, 1))
    axes.legend()
    figure
    return


@app.cell
def _(exact, mo, private):
    mo.md(
        f"""
        The bands account for the privacy noise. Each point of a band covers the truth in 95 % of trials; the whole
        curve is inside less often.

        | log-rank test | chi-squared | p |
        | --- | --- | --- |
        | private | {private.log_rank_.statistic:.1f} | {private.log_rank_.p_value:.2g} |
        | without privacy | {exact.log_rank_.statistic:.1f} | {exact.log_rank_.p_value:.2g} |

        The dashed curves are exact, without privacy: do not publish them with the private ones.
        """
    )
    return


if __name__ == "__main__":
    app.run()
