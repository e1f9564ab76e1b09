"""Noise-aware or not: how often intervals hold if the posterior knows the privacy noise, and if it does not."""

import marimo

app = marimo.App()


@app.cell
def _():
    import marimo as mo

    mo.md(
        """
        # Noise-aware or not

        A private mean is the true mean plus noise of a known law. An analyst can account for that noise, or treat the
        noisy mean as exact. Both cost the same privacy. Which intervals have the coverage that they claim?

        300 clients hold one number each, drawn from a known law. We release their mean 200 times at ε = 0.5, and count
        how often a 90 % interval contains the true mean.
        """
    )
    return (mo,)


@app.cell
def _():
    import numpy as np

    from dca_proto.aggregate import RoundRequest
    from dca_proto.jobs.job import JobTerms
    from dca_proto.testing import seeded
    from emulator.ideal import IdealSwarm

    truth, clients, z = 0.5, 300, 1.645
    terms = JobTerms(epsilon=0.5, delta=1e-5, clients=clients, tolerate=0, computes=(b"a", b"b"))
    asked = RoundRequest("sum", {"columns": ["x"], "centre": [0.0], "scale": [1.0], "bound": [4.0]})

    def released(seed):
        """Return a private mean, and the standard deviation of its noise, which is public."""
        x = np.random.default_rng(seed).normal(truth, 1, (clients, 1))
        aggregate = IdealSwarm(x, ["x"], terms, random=seeded(str(seed))).run_round(asked)
        return aggregate.value[0] / clients, np.sqrt(aggregate.noise_variance) / clients

    return clients, np, released, truth, z


@app.cell
def _(clients, np, released, truth, z):
    means, noises = np.array([released(seed) for seed in range(200)]).T
    sampling = 1 / np.sqrt(clients)  # of numbers whose standard deviation is 1
    errors = np.abs(means - truth)
    coverage = {
        "ignores the noise": float(np.mean(errors <= z * sampling)),
        "noise-aware": float(np.mean(errors <= z * np.hypot(sampling, noises))),
    }
    coverage
    return coverage, noises, sampling


@app.cell
def _(coverage, mo, noises, sampling):
    mo.md(
        f"""
        | interval | half of its width | contains the true mean in |
        | --- | --- | --- |
        | ignores the noise | {1.645 * sampling:.3f} | {100 * coverage["ignores the noise"]:.0f} % |
        | noise-aware | {1.645 * (sampling**2 + noises[0] ** 2) ** 0.5:.3f} | {100 * coverage["noise-aware"]:.0f} % |

        The first interval is as narrow as if there were no noise. An analyst who reports it mistakes noise for a
        finding. Every job of this library is noise-aware: its posterior accounts for the noise, whose variance each
        result states (`noise_variance`).
        """
    )
    return


if __name__ == "__main__":
    app.run()
