"""Prints an actor's facts as sentences: a line for each event, and one moving status line for counts. Or logs JSON."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from dca_proto.cli.output import Terminal
from dca_proto.cli.progress import Display, score_text
from dca_proto.privacy.rounding import at_least, at_most
from dca_proto.protocol import facts
from dca_proto.protocol.trainer import round as trainer_round
from dca_proto.runtime.logs import FactLog
from dca_proto.runtime.silence import silent_words, spare_words
from dca_proto.runtime.transport import Connected, Disconnected, Gone
from dca_proto.wording import counted, ids_in_words, listed, printable

if TYPE_CHECKING:  # only `dca learn` needs them
    from dca_proto.jobs.runner import FinishedRequest
    from inference.jobs.base import Stage
    from inference.variational.progress import Iteration

_WHY_CLOSED = {
    trainer_round.ALL: "all expected ones have arrived",
    trainer_round.FULL: "the sum is full",
    trainer_round.QUIET: "enough have arrived, and no more are arriving",
    trainer_round.DEADLINE: "the time is over",
}

SHOWN_ROUNDS_MAX = 4  # in jobs of more rounds, only the rounds' results are shown
_PHASES = (facts.Announced, facts.Closed, facts.Absent)
_ABSENT_SHOWN = 20


class Reporter:
    """Prints the facts of one actor; call it with each fact, inside its context.

    Args:
        console: where to print. name_of: returns a member's or client's name with its short id (`Device.name_of`).
        expected: how many clients' answers a trainer waits for, or 0.
        iterative: whether to show a bar over iterations.
        json_logs: whether to log the facts in place of all printing; see `configure_logs`.
        again: of a command that Ctrl-C may end in a round: what goes on with the round, as the start of a sentence.

    Attributes:
        open_round: the announced round that has not ended; None if there is none.
    """

    def __init__(
        self,
        console: Console,
        name_of: Callable[[bytes], str],
        expected: int = 0,
        *,
        iterative: bool = False,
        json_logs: bool = False,
        again: str = "",
    ) -> None:
        self.open_round: bytes | None = None
        self._again, self._is_advised = again, False
        self._log = FactLog(name_of) if json_logs else None
        self._console = console = Terminal(quiet=True) if json_logs else console
        self._name = name_of
        self._expected = expected
        self._declined: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._display = Display(console, iterative=iterative)

    def __enter__(self) -> Reporter:
        self._display.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._display.__exit__()

    def say(self, line: str) -> None:
        """Print a line with the time."""
        self._console.print(f"{time.strftime('%H:%M:%S')}  {printable(line)}", soft_wrap=True)

    def waiting(self, line: str, done: int = 0, total: int | None = None) -> None:
        """Show what the actor is doing now, on a terminal only. Arguments: see `Display.waiting`."""
        self._display.waiting(line, done, total)

    def open_words(self) -> str:
        """Return which round a signal leaves open, and what goes on with it; empty if there is none."""
        if self.open_round is None:
            return ""
        return f"round {_short(self.open_round)} is open, and clients may have paid for it; {self._again}"

    def _note(self, fact: object) -> None:
        """Keep which round is open."""
        match fact:
            case facts.Announced(round_id):
                self.open_round = round_id
            case facts.RoundCompleted() | facts.RoundFailed():
                self.open_round = None
            case _:
                pass

    def __call__(self, fact: object) -> None:
        self._note(fact)
        if self._log is not None:
            self._log(fact)
            return
        match fact:
            case facts.SessionKept(_, count):
                self.waiting(f"{counted(count, 'client')} with a session")
            case facts.Arrived(round_id, count, expected):
                of = f" of {expected:,}" if expected else ""
                self.waiting(f"round {_short(round_id)}: {count:,}{of} contributions", count, expected or None)
            case facts.ContributionKept(round_id, _, count):
                self.waiting(f"round {_short(round_id)}: {count:,} contributions kept")
            case facts.ReleaseKept(round_id, _, _, count):
                of = f" of {self._expected:,}" if self._expected else ""
                self.waiting(f"round {_short(round_id)}: {count:,}{of} released", count, self._expected or None)
            case facts.Dropped("nonce"):  # a question that was repeated has two answers; a log and the status count it
                pass
            case facts.Dropped(code, sender, detail):
                self._say_rarely(self._dropped, code, f"dropped a message of {self._name(sender)}: {detail}")
            case facts.Declined(round_id, client, reason, found, expected):
                who = f"round {_short(round_id)}: {self._name(client)}"
                self._say_rarely(self._declined, reason, f"{who} declined: {reason}: found {found}; accepts {expected}")
            case _:
                self._say_line(fact)

    def _say_line(self, fact: object) -> None:
        line = self._connection_line(fact) or self._trainer_line(fact) or self._round_line(fact)
        if line:  # the caller prints results
            self.say(line)
        if isinstance(fact, facts.NodesSilent) and fact.until_ms:
            self._advise(fact)

    def _advise(self, fact: facts.NodesSilent) -> None:
        """Print once how to end the wait for Compute nodes."""
        if self._again and not self._is_advised:
            cost = f"no further cost; once they answer again, {self._again}" if fact.is_charged else "no cost"
            self.say(f"Ctrl-C ends this command now, at {cost}")
        self._is_advised = True

    def _say_rarely(self, counts: Counter[str], key: str, line: str) -> None:
        """Print the 1st, 2nd, 4th, 8th, ... line of a kind, so that many clients do not fill the screen."""
        counts[key] += 1
        if counts[key] & (counts[key] - 1) == 0:
            self.say(f"{line} ({counts[key]} of this kind so far)" if counts[key] > 1 else line)

    def _trainer_line(self, fact: object) -> str:
        match fact:
            case facts.Announced():
                announced = f"announced {fact.statistic} ({counted(fact.dimension, 'number')})"
                spare = len(fact.computes) - fact.p - 1
                nodes = listed([self._name(node) for node in fact.computes])
                lost = f", without {listed([self._name(node) for node in fact.without])}" if fact.without else ""
                over = f" over {nodes}{lost}; p = {fact.p}, so {spare_words(spare)}" if spare > 0 or lost else ""
                return f"round {_short(fact.round_id)}: {announced}{over}"
            case facts.WaitingForKeys(round_id, computes):
                names = ", ".join(map(self._name, computes))
                one = len(computes) == 1
                nodes = f"Compute node {names} has" if one else f"Compute nodes {names} have"
                up = "is it up?" if one else "are they up?"
                return f"round {_short(round_id)}: {nodes} not answered yet; asking again; {up}"
            case facts.NodesSilent():
                return f"round {_short(fact.round_id)}: {silent_words(fact, self._name)}"
            case facts.Closed(round_id, count, why):
                self.waiting(f"round {_short(round_id)}: the Compute nodes agree")
                return f"round {_short(round_id)}: closed with {count:,} contributions: {_WHY_CLOSED[why]}"
            case _:
                return ""

    def _connection_line(self, fact: object) -> str:
        match fact:
            case Connected(url, away_s):
                return f"connected to {url}" + (f" after {away_s:.3g} seconds without a connection" if away_s else "")
            case Disconnected(_, reason):
                return f"{reason}; trying again"
            case Gone(sender):
                return f"the broker says that the connection of {self._name(sender)} broke off; it may be back by now"
            case facts.LedgerRestored(forgotten, left):
                counts = f"the client counts {counted(forgotten, 'charge')} that its restored store lacks"
                return f"all Compute nodes have answered: {counts}; epsilon {at_most(left)} is left"
            case facts.FederationChanged(number, file_hash, revoked):
                file = f"federation file {number} (hash {file_hash.hex()[:16]})"
                gone = f"; it revokes {ids_in_words(revoked, self._name)}" if revoked else ""
                return f"received {file}, which applies from now on{gone}"
            case _:
                return ""

    def _round_line(self, fact: object) -> str:
        match fact:
            case facts.DataFailed(round_id, statistic, error):
                failed = f"reading the data, or some rows, failed with {error}"
                return f"round {_short(round_id)}: {failed}; they count as zero in {statistic}"
            case facts.Contributed(round_id, statistic, mu, pure, slack):
                charged = f"epsilon = {at_least(pure)} at delta 0" if pure else f"mu = {at_least(mu)}"
                charged += f", slack = {at_least(slack)}" if slack else ""
                return f"round {_short(round_id)}: contributed to {statistic}, charged {charged}"
            case facts.LedgerReused(round_id, compute, charge, highest):
                seen = f"{self._name(compute)} has already seen charge {charge}, and charges up to {highest}"
                why = "the ledger looks like an old copy, or runs twice; the client declines all further rounds"
                return f"ERROR: round {_short(round_id)}: {seen}: {why}"
            case facts.Acknowledged(round_id):
                return f"round {_short(round_id)}: the receipt has arrived"
            case facts.ChargeReturned(round_id):
                return f"round {_short(round_id)}: nothing was released, and the charge is returned"
            case facts.Absent(round_id, clients):
                names = listed([self._name(client) for client in clients[:_ABSENT_SHOWN]], _ABSENT_SHOWN)
                more = len(clients) - _ABSENT_SHOWN
                others = f" and {more:,} more" if more > 0 else ""
                return f"round {_short(round_id)}: {counted(len(clients), 'client')} absent: {names}{others}"
            case facts.ListFrozen(round_id, count):
                return f"round {_short(round_id)}: froze a list of {count:,} contributions"
            case facts.Released(round_id, contributors, _):
                return f"round {_short(round_id)}: released the partial sum over {contributors} contributions"
            case facts.NodeAborted(round_id, compute, reason, detail):
                return f"round {_short(round_id)}: {self._name(compute)} aborted the round: {detail} ({reason})"
            case _:
                return ""


def _short(value: bytes) -> str:
    return value.hex()[:8]


class ProgressReporter(Reporter):
    """Prints a trainer's facts and a job's progress: a line for each round of a job with many rounds.

    On a terminal, a bar with the iterations done and the last score replaces these lines.

    Args:
        console, name_of, expected, json_logs, again: as for `Reporter`. stages: of the job.
    """

    def __init__(
        self,
        console: Console,
        name_of: Callable[[bytes], str],
        expected: int,
        stages: Sequence[Stage],
        *,
        json_logs: bool = False,
        again: str = "",
    ) -> None:
        self._rounds = sum(stage.rounds for stage in stages)
        self._has_bar = console.is_terminal and self._rounds > SHOWN_ROUNDS_MAX
        super().__init__(console, name_of, expected, iterative=self._has_bar, json_logs=json_logs, again=again)
        self._ended: FinishedRequest | None = None
        self._recalled = 0

    def __call__(self, fact: object) -> None:
        self._say_recalled()
        if self._log is not None or self._rounds <= SHOWN_ROUNDS_MAX or not isinstance(fact, _PHASES):
            super().__call__(fact)
        else:
            self._note(fact)

    def ended(self, finished: FinishedRequest) -> None:
        """Take the outcome of a request. It is printed once the job has used it, with the score."""
        if finished.recalled:
            self._recalled += 1
            return
        self._say_recalled()
        self._say_ended("")
        self._ended = finished

    def iterated(self, iteration: Iteration) -> None:
        """Print the last round with the score that the job reached with it."""
        self._rounds = max(self._rounds, iteration.total + 1)
        self._display.iterated(iteration)
        score = score_text(iteration)
        self._say_ended(f"; {score}" if score else "", is_shown=self._has_bar)

    def _say_ended(self, score: str, *, is_shown: bool = False) -> None:
        """Print the last outcome once, unless the bar already shows it."""
        held, self._ended = self._ended, None
        if held is None:
            return
        done = f"round {held.number} of {max(self._rounds, held.number)}: {held.request.statistic}"
        if held.aggregate is None:
            self.say(f"{done}: no result: {held.reason}")
            return
        if is_shown and held.attempts == 1:
            return
        again = f", attempt {held.attempts}" if held.attempts > 1 else ""
        result = held.aggregate
        who = f"{result.contributors:,} of {result.clients:,} clients contributed"
        if result.reports is not None:
            who = f"{counted(result.contributors, 'client')} reported by {result.mechanism}"
        elif result.nodes:
            who = f"{counted(result.clients, 'data node')} released sums over {counted(result.contributors, 'row')}"
        self.say(f"{done}: {who}{again}{score}")

    def _say_recalled(self) -> None:
        """Print once, before anything new, how many rounds an earlier call has done."""
        if self._recalled:
            self.say(f"resumed: {self._recalled} of {max(self._rounds, self._recalled)} rounds were done before")
            self._recalled = 0

    def __exit__(self, *failure: object) -> None:
        self._say_recalled()
        self._say_ended("")
        super().__exit__(*failure)
