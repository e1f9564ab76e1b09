"""What a person sees of `dca learn` while its rounds are held."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from rich.console import Console

from dca_proto.aggregate import NoisyAggregate
from dca_proto.cli.progress import score_words
from dca_proto.cli.reporter import Reporter
from dca_proto.errors import UsageError
from dca_proto.jobs.runner import HeldRound
from dca_proto.protocol import facts
from dca_proto.protocol.federation import Federation
from dca_proto.wording import counted, to_install
from inference.jobs.base import Stage
from inference.variational.progress import Iteration

NARRATED_MAX = 4  # rounds whose phases are shown; of more, only their ends are
_PHASES = (facts.Announced, facts.Closed)


class ProgressReporter(Reporter):
    """Tells a trainer's facts, and how far the job has come; a job of many rounds gets a line for each.

    On a terminal, a bar shows how many iterations are done, with the score after the last one, in place of their lines.

    Args:
        console, federation, expected: as of `Reporter`. stages: of the job.
    """

    def __init__(self, console: Console, federation: Federation, expected: int, stages: Sequence[Stage]) -> None:
        self._rounds = sum(stage.rounds for stage in stages)
        self._has_bar = console.is_terminal and self._rounds > NARRATED_MAX
        super().__init__(console, federation, expected, iterative=self._has_bar)
        self._ended: HeldRound | None = None
        self._recalled = 0

    def __call__(self, fact: object) -> None:
        self._tell_recalled()
        if self._rounds <= NARRATED_MAX or not isinstance(fact, _PHASES):
            super().__call__(fact)

    def ended(self, held: HeldRound) -> None:
        """A request of the job has ended; it is shown once its sum was used, with the score then."""
        if held.recalled:
            self._recalled += 1
            return
        self._tell_recalled()
        self._tell_ended("")
        self._ended = held

    def iterated(self, iteration: Iteration) -> None:
        """The sum of the round before was used."""
        self._rounds = max(self._rounds, iteration.total + 1)
        self._display.iterated(iteration)
        score = score_words(iteration)
        self._tell_ended(f"; {score}" if score else "", is_shown=self._has_bar)

    def _tell_ended(self, score: str, *, is_shown: bool = False) -> None:
        """The round that has ended, once; nothing more where the bar shows all that there is to say."""
        held, self._ended = self._ended, None
        if held is None:
            return
        done = f"round {held.number} of {max(self._rounds, held.number)}: {held.request.statistic}"
        if held.aggregate is None:
            self.say(f"{done}: no sum: {held.reason}")
            return
        if is_shown and held.attempts == 1:
            return
        again = f", attempt {held.attempts}" if held.attempts > 1 else ""
        self.say(f"{done}: {_contributed(held.aggregate)}{again}{score}")

    def _tell_recalled(self) -> None:
        """Once, before anything new: how many rounds an earlier call has held."""
        if self._recalled:
            self.say(f"resumed: {self._recalled} of {max(self._rounds, self._recalled)} rounds were held before")
            self._recalled = 0

    def __exit__(self, *failure: object) -> None:
        self._tell_recalled()
        self._tell_ended("")
        super().__exit__(*failure)


def _contributed(aggregate: NoisyAggregate) -> str:
    if aggregate.reports is not None:
        return f"{counted(aggregate.contributors, 'client')} reported by {aggregate.mechanism}"
    if aggregate.nodes:
        return f"{counted(aggregate.clients, 'data node')} released, of {counted(aggregate.contributors, 'row')}"
    return f"{aggregate.contributors} of {aggregate.clients} clients contributed"


def require_arviz() -> None:
    """Refuse draws that nothing here can write. Raises `UsageError`."""
    if find_spec("arviz") is None:
        raise UsageError(f"--draws needs ArviZ, which is not installed: {to_install('samplers')}")
