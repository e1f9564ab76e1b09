"""What privacy costs: the error of a private regression over ε and over the number of clients."""

import marimo

app = marimo.App()


@app.cell
def _():
    import marimo as mo

    mo.md(
        """
        # What privacy costs

        442 patients each hold one row. A regression predicts how their diabetes progresses. How much worse are its
        predictions if each patient is protected with ε, and how does that change with the number of patients?

        The rounds come from `IdealSwarm`, which draws the same sums as the protocol, without messages.
        """
    )
    return (mo,)


@app.cell
def _():
    import numpy as np

    from dca_proto.jobs.job import JobTerms
    from dca_proto.testing import seeded
    from emulator.ideal import IdealSwarm
    from inference.datasets import load
    from inference.estimators import PrivateLinearRegression
    from inference.problem import split, stream

    train, test = split(load("diabetes"), 111, stream(1, "split"))

    def error(model):
        """Return the root mean square error on the held-out patients."""
        return float(np.sqrt(np.mean((model.predict(test.X) - test.y) ** 2)))

    def private_error(epsilon, copies, seed):
        """Return the error of a private fit to `copies` of the training rows, to simulate more patients."""
        rows = np.tile(train.rows, (copies, 1))
        terms = JobTerms(epsilon=epsilon, delta=1e-5, clients=len(rows), tolerate=0, computes=(b"a", b"b"))
        swarm = IdealSwarm(rows, train.schema.columns, terms, random=seeded(str(seed)))
        return error(PrivateLinearRegression(schema=train.schema).fit(swarm))

    without_privacy = error(PrivateLinearRegression().fit(train.X, train.y))
    mean_alone = float(np.sqrt(np.mean((test.y - train.y.mean()) ** 2)))
    return mean_alone, np, private_error, without_privacy


@app.cell
def _(np, private_error):
    epsilons, copies, repeats = (0.3, 1.0, 4.0, 16.0), (1, 10), 5
    errors = {
        count: [float(np.median([private_error(one, count, seed) for seed in range(repeats)])) for one in epsilons]
        for count in copies
    }
    return epsilons, errors


@app.cell
def _(epsilons, errors, mean_alone, without_privacy):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for _count, _found in errors.items():
        axes.semilogx(epsilons, _found, "o-", label=f"private, {331 * _count:,} patients")
    axes.axhline(without_privacy, color="black", linestyle="--", label="without privacy")
    axes.axhline(mean_alone, color="0.6", linestyle=":", label="predicting the mean")
    axes.set_xticks(epsilons, labels=[f"{one:g}" for one in epsilons], minor=False)
    axes.set_xticks([], minor=True)
    axes.set(xlabel="ε (δ = 1e-5)", ylabel="root mean square error, held-out patients")
    axes.legend()
    figure
    return


@app.cell
def _(mo):
    mo.md(
        """
        A sum grows with the number of patients, but its noise does not. So ten times as many patients need about a
        tenth of the ε for the same error. At 331 patients, ε = 0.3 leaves little more than the
        mean; at 3,310 it costs almost nothing.

        `dca account --clients 331 --epsilon 1` answers such questions without data.
        """
    )
    return


if __name__ == "__main__":
    app.run()
