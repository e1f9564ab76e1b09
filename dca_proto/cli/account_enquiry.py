"""What `dca account` is asked, and the rounds that this means: planned by the same code as every participant's."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from dca_proto.cli.account_question import Question
from dca_proto.crypto.sealing import ID_BYTES
from dca_proto.errors import UsageError
from dca_proto.jobs.forecast import EXACT
from dca_proto.privacy import accounting
from dca_proto.privacy import composition as privacy_loss
from dca_proto.privacy.budget import Budget, RoundCost, best_shares
from dca_proto.privacy.rounding import at_least
from dca_proto.protocol.params import Limits
from dca_proto.protocol.trainer.request import AskSecureSum, OpenRound
from dca_proto.statistics import resolve
from dca_proto.statistics.contribution import client_sensitivity
from dca_proto.wording import nearest

_KINDS: dict[str, tuple[type[privacy_loss.Release], str]] = {
    "gaussian": (privacy_loss.Gaussian, "gaussian:MU"),
    "laplace": (privacy_loss.Laplace, "laplace:EPSILON or, on a grid, laplace:EPSILON,STEPS"),
    "randomised-response": (privacy_loss.RandomisedResponse, "randomised-response:EPSILON,CATEGORIES"),
    "unary-encoding": (privacy_loss.UnaryEncoding, "unary-encoding:EPSILON"),
    "pure": (privacy_loss.PureDP, "pure:EPSILON"),
}


class Enquiry(msgspec.Struct, frozen=True, kw_only=True):
    """A job that may be held one day.

    Attributes:
        budget: of the whole job, for each participant.
        clients, tolerated, colluders, computes: N, T, c and M.
        questions: of each round, the statistic's name and parameters.
        shares: of each round, of μ²; None for the best ones.
        rows_max, fraction_bits: as in an announcement. also: what else is spent on the same participants.
    """

    budget: Budget
    clients: int
    tolerated: int
    colluders: int
    computes: int
    questions: tuple[Question, ...]
    shares: tuple[float, ...] | None
    rows_max: int
    fraction_bits: int
    also: tuple[privacy_loss.Release, ...]

    def divided(self) -> tuple[float, ...]:
        """The share of each round: as given, or the ones that minimise the sum of all coordinates' noise variances.

        Raises:
            UsageError: not one share for each round, or a statistic that cannot be.
        """
        if self.shares is None:
            return best_shares(map(self._error, self.questions))
        if len(self.shares) != len(self.questions):
            raise UsageError(
                f"--shares: found {len(self.shares)}, expected one for each of {len(self.questions)} rounds"
            )
        return self.shares

    def _error(self, question: Question) -> float:
        """Δ² d, in the statistic's units."""
        statistic = resolve(*question)
        sensitivity = client_sensitivity(statistic, self.rows_max, self.fraction_bits)
        return math.ldexp(sensitivity.l2, -self.fraction_bits) ** 2 * statistic.dimension

    def rounds(self, shares: Sequence[float]) -> list[OpenRound]:
        """Each round as a trainer would be asked for it. Raises `UsageError` where one cannot be held."""
        self._check()
        return [
            self._checked(number, question, cost)
            for number, (question, cost) in enumerate(zip(self.questions, self.budget.split(shares), strict=True), 1)
        ]

    def _check(self) -> None:
        """What an announcement cannot carry, or only the clients' number decides."""
        most = Limits().clients_max
        if not 1 <= self.clients <= most:
            raise UsageError(f"N = {self.clients} clients, expected 1 to {most}; change --clients")
        for name, option, count in (("T", "--tolerate", self.tolerated), ("c", "--colluders", self.colluders)):
            if count < 0:
                raise UsageError(f"{name} = {count}, expected 0 or more; change {option}")

    def _checked(self, number: int, question: Question, cost: RoundCost) -> OpenRound:
        request = OpenRound(
            round_id=bytes(ID_BYTES),
            statistic=question[0],
            parameters=question[1],
            mu=cost.mu,
            epsilon=cost.epsilon,
            delta=cost.delta,
            ask=AskSecureSum(
                computes=tuple(place.to_bytes(ID_BYTES, "big") for place in range(self.computes)),
                tolerated=self.tolerated,
                colluders=self.colluders,
            ),
            clients_expected=self.clients,
            rows_max=self.rows_max,
            fraction_bits=self.fraction_bits,
        )
        try:
            request.draft(EXACT, Limits())
            return request
        except UsageError as error:
            if len(self.questions) == 1:
                raise
            raise UsageError(f"round {number}, {question[0]} at epsilon {at_least(cost.epsilon)}: {error}") from None


def asked_otherwise(request: OpenRound, clients: int, tolerated: int) -> OpenRound:
    """The same question for other N and T, without colluders."""
    ask = AskSecureSum(computes=request.ask.computes, tolerated=tolerated)
    return msgspec.structs.replace(request, ask=ask, clients_expected=clients)


def total_mu(rounds: Sequence[OpenRound]) -> float:
    """μ of all rounds together."""
    return accounting.compose(request.mu for request in rounds)


def parse_also(text: str) -> privacy_loss.Release:
    """``KIND:VALUE``. Raises `UsageError` that lists the kinds."""
    kind, _, values = text.partition(":")
    if kind not in _KINDS:
        forms = ", ".join(form for _, form in _KINDS.values())
        raise UsageError(f"--also {text!r}: {kind!r} is unknown{nearest(kind, _KINDS)}; expected one of {forms}")
    release, form = _KINDS[kind]
    try:
        first, *rest = values.split(",")
        return release(float(first), *map(int, rest))
    except UsageError as error:
        raise UsageError(f"--also {text!r}: {error}") from None
    except (TypeError, ValueError):
        raise UsageError(f"--also {text!r}: expected {form}") from None


def parse_shares(text: str) -> tuple[float, ...] | None:
    """``A,B,...`` or ``best``, which is None. Raises `UsageError` for anything else."""
    if text == "best":
        return None
    try:
        return tuple(float(share) for share in text.split(","))
    except ValueError:
        raise UsageError(f"--shares {text!r}: expected one number for each round, as in 0.1,0.9, or best") from None
