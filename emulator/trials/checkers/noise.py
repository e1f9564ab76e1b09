"""Invariant 10: each release carries the noise that its claim needs, drawn from a secret that nobody can repeat.

`emulator.reference` computes the amount from the announcement alone, without the product's own plan. The checker tests
the variance of each draw before the sum, and all draws of the trial together against too little noise. It checks that
each key depends on fresh randomness and on the client's secret, and that no two contributions have the same noise.
"""

from __future__ import annotations

from collections import defaultdict
from math import ldexp, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dca_proto.privacy.mechanism import GRID_LAPLACE, RANDOMISED_RESPONSE, UNARY_ENCODING, DistributedDiscreteGaussian
from dca_proto.protocol.contribution import ClientMessage
from dca_proto.protocol.kinds import LdpReport, NodeRelease
from dca_proto.protocol.wire.messages import Announcement
from emulator import reference
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker, RunLog, about
from emulator.trials.world import TrialWorld
from emulator.wire import Accepted

_ROUNDING = 1 - 1e-9
_ALIKE = 30.0  # natural log of the number of values that noise must have before two equal draws are no chance


class Noise(Checker):
    """Checks the amount of noise and its key."""

    number, name = 10, "enough noise from a fresh secret"

    def __init__(self, world: TrialWorld, log: RunLog) -> None:
        super().__init__(world, log)
        self._variances: dict[bytes, float] = {}  # least variance of one client's noise, by announcement
        self._drawn: set[bytes] = set()
        self._sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0])  # scaled noise and number of draws
        self._hits: defaultdict[tuple[str, float, bool], list[int]] = defaultdict(lambda: [0, 0])

    def on_drawn(self, client: Process, round_id: bytes, outbound: ClientMessage) -> None:
        """An honest client's draw for a contribution has enough noise, from a fresh key."""
        drawn, body = self.log.draws.drawn, self.log.accepted[client.id, round_id].body
        if drawn is None:
            return  # invariant 3 reports a contribution without noise
        who, missing = about(client, round_id), " and on ".join(self.log.draws.key_ignores)
        self.expect(not missing, f"{who}: its noise does not depend on {missing}")
        if isinstance(body.terms, LdpReport):
            self._add_report(client, body, drawn)
        elif body.mechanism == DistributedDiscreteGaussian.name:
            least, variance = self._least(self.log.accepted[client.id, round_id]), float(self.log.draws.variance)
            enough = variance >= least * _ROUNDING
            self.expect(enough, f"{who}: its noise has the variance {variance:.6g}, expected {least:.6g}")
            self._add("gaussian", float(np.sum(drawn.astype(float) ** 2)) / least, drawn.size)
            if drawn.size * log(variance + 1) / 2 > _ALIKE:
                again = drawn.tobytes() in self._drawn
                self._drawn.add(drawn.tobytes())
                self.expect(not again, f"{who}: another contribution has the same noise")

    def _least(self, accepted: Accepted) -> float:
        """Return the least variance of one client's noise, in squared grid units."""
        body = accepted.body
        if accepted.hash not in self._variances:
            honest = body.terms.fewest - 1 - body.terms.colluders if body.terms.is_summed else 1
            rows = 1 if isinstance(body.terms, NodeRelease) else max(1, body.rows_max)
            _, l2 = reference.sensitivity_of(body.statistic, body.parameters, rows)
            least = reference.least_variance(l2, body.epsilon, body.delta, honest)
            self._variances[accepted.hash] = ldexp(least, 2 * body.fraction_bits)
        return self._variances[accepted.hash]

    def _add_report(self, process: Process, body: Announcement, report: NDArray[Any]) -> None:
        """Count the report of a client with one row in a histogram and no missing value."""
        row = self.world.actors.rows[self.world.client_number(process.id)]
        if body.statistic != "histogram" or len(row) != 1 or np.isnan(row).any():
            return
        k = reference.dimension("histogram", body.parameters)
        own = reference.contribution("histogram", body.parameters, row.tolist(), 1, 0).index(1)
        if body.mechanism in (RANDOMISED_RESPONSE, UNARY_ENCODING):
            right, wrong, _ = reference.odds(body.mechanism, body.epsilon, k)
            if body.mechanism == RANDOMISED_RESPONSE:
                self._hit("own category", right, True, np.asarray(report == own))
                return
            bits = report.reshape(-1)
            self._hit("own bit", right, True, bits[own])
            self._hit("other bit", wrong, False, np.delete(bits, own))
        else:
            noise = np.ldexp(report.reshape(-1).astype(float), -body.fraction_bits) - (np.arange(k) == own)
            l1, l2 = reference.sensitivity("histogram", [1.0] * k)
            if body.mechanism == GRID_LAPLACE:
                self._add("laplace", float(np.abs(noise).sum()) * body.epsilon / l1, k)
            else:
                self._add("gaussian", float(noise @ noise) / reference.least_variance(l2, body.epsilon, body.delta), k)

    def _add(self, law: str, scaled: float, count: int) -> None:
        self._sums[law][0] += scaled
        self._sums[law][1] += count

    def _hit(self, label: str, chance: float, above: bool, hits: NDArray[Any]) -> None:
        count = self._hits[label, chance, above]
        count[0] += int(np.sum(hits))
        count[1] += int(np.size(hits))

    def finish(self) -> None:
        """All draws of the trial together have enough noise."""
        for law, (total, count) in self._sums.items():
            weak = reference.too_little(total, int(count), half=law == "gaussian")
            self.expect(
                not weak, f"{count:.0f} {law} draws have {total / max(count, 1):.3g} of the noise that they must have"
            )
        for (what, chance, above), (hits, count) in self._hits.items():
            odd = reference.unlikely(hits, count, chance, above=above)
            expected = f"{'at most' if above else 'at least'} a share of {chance:.3g}"
            self.expect(not odd, f"reports name an {what} {hits} times of {count}, expected {expected}")
