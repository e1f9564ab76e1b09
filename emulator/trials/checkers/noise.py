"""Invariant 10: each release carries the noise that its claim needs, drawn from a secret that nobody can repeat.

`emulator.reference` computes the amount from the announcement alone: no figure of the product's own plan is used.
Checked are the variance of each draw, before the sum; the draws of the whole trial together, against a law of less
noise; that a key depends on fresh randomness and on the client's secret; that no two contributions have the same noise.
"""

from __future__ import annotations

from collections import defaultdict
from math import ldexp, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dca_proto.privacy.mechanism import GRID_LAPLACE, RANDOMISED_RESPONSE, UNARY_ENCODING, DistributedDiscreteGaussian
from dca_proto.protocol.contribution import Outbound
from dca_proto.protocol.kinds import LdpReport, NodeRelease, SecureSum
from dca_proto.protocol.wire.messages import Announcement
from emulator import reference
from emulator.sim.process import Process
from emulator.trials.checkers.base import Checker, RunLog, about
from emulator.trials.world import TrialWorld
from emulator.wire import Asked

_ROUNDING = 1 - 1e-9
_ALIKE = 30.0  # ln of how many values noise must have before two that are the same are no chance


class Noise(Checker):
    """The amount of noise and where it comes from."""

    number, name = 10, "enough noise from a fresh secret"

    def __init__(self, world: TrialWorld, log: RunLog) -> None:
        super().__init__(world, log)
        self._variances: dict[bytes, float] = {}  # the least of one client's noise, by announcement
        self._drawn: set[bytes] = set()
        self._sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0])  # scaled noise, and how much of it
        self._hits: defaultdict[tuple[str, float, bool], list[int]] = defaultdict(lambda: [0, 0])

    def on_drawn(self, client: Process, round_id: bytes, made: Outbound) -> None:
        """What an honest client has just drawn for a contribution."""
        drawn, body = self.log.draws.drawn, self.log.asked[client.id, round_id].body
        if drawn is None:
            return  # invariant 3 reports that
        who, missing = about(client, round_id), " and on ".join(self.log.draws.without)
        self.expect(not missing, f"{who}: its noise does not depend on {missing}")
        if isinstance(body.terms, LdpReport):
            self._add_report(client, body, drawn)
        elif body.mechanism == DistributedDiscreteGaussian.name:
            least, found = self._least(self.log.asked[client.id, round_id]), float(self.log.draws.variance)
            enough = found >= least * _ROUNDING
            self.expect(enough, f"{who}: its noise has the variance {found:.6g}, expected {least:.6g}")
            self._add("gaussian", float(np.sum(drawn.astype(float) ** 2)) / least, drawn.size)
            if drawn.size * log(found + 1) / 2 > _ALIKE:
                again = drawn.tobytes() in self._drawn
                self._drawn.add(drawn.tobytes())
                self.expect(not again, f"{who}: another contribution has the same noise")

    def _least(self, asked: Asked) -> float:
        """The variance that one client's noise has at least, in squared grid units."""
        body = asked.body
        if asked.hash not in self._variances:
            honest = body.terms.fewest - 1 - body.terms.colluders if isinstance(body.terms, SecureSum) else 1
            rows = 1 if isinstance(body.terms, NodeRelease) else max(1, body.rows_max)
            _, l2 = reference.sensitivity_of(body.statistic, body.parameters, rows)
            least = reference.least_variance(l2, body.epsilon, body.delta, honest)
            self._variances[asked.hash] = ldexp(least, 2 * body.fraction_bits)
        return self._variances[asked.hash]

    def _add_report(self, process: Process, body: Announcement, report: NDArray[Any]) -> None:
        """What a client without a missing value reports of its bin."""
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

    def _hit(self, what: str, chance: float, above: bool, hits: NDArray[Any]) -> None:
        count = self._hits[what, chance, above]
        count[0] += int(np.sum(hits))
        count[1] += int(np.size(hits))

    def finish(self) -> None:
        """All draws of the trial together."""
        for law, (total, count) in self._sums.items():
            weak = reference.too_little(total, int(count), half=law == "gaussian")
            self.expect(
                not weak, f"{count:.0f} {law} draws are {total / max(count, 1):.3g} of what they must be at least"
            )
        for (what, chance, above), (hits, count) in self._hits.items():
            odd = reference.unlikely(hits, count, chance, above=above)
            self.expect(not odd, f"reports name an {what} {hits} times of {count}, where the chance is {chance:.3g}")
