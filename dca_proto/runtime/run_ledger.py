"""What runs of `dca swarm` on the same rows have cost together, in a file that its user names.

A swarm's clients are made anew in each run, so their own ledgers begin empty. The file adds up instead, and refuses a
run beyond its total. A run is written down before its first round, and stays whatever becomes of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from dca_proto.errors import InputError, StorageError, UsageError
from dca_proto.privacy import accounting
from dca_proto.privacy.cost import PrivacyCost, total
from dca_proto.privacy.rounding import at_least, at_most
from dca_proto.runtime.clock import now_ms
from dca_proto.runtime.files import open_input, read_text, sync_folder, whole_file
from dca_proto.runtime.locks import locked, release, require_one_name
from dca_proto.runtime.spending import Charged, Spending
from dca_proto.runtime.store_check import STORE_BYTES_MAX
from dca_proto.wording import counted, iso

RUNS = "runs of dca swarm"  # in place of an actor's role


class SwarmRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run in the file: when it began, its job, and what it costs."""

    at: str
    job: str
    cost: PrivacyCost


class _Content(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The total (epsilon, delta) of all runs, and the runs."""

    epsilon: float
    delta: float
    runs: tuple[SwarmRun, ...] = ()


def is_run_ledger(path: Path) -> bool:
    """Return whether a file is one of `dca swarm --ledger`: JSON, unlike an actor's file or store."""
    with open_input(path, bytes_max=STORE_BYTES_MAX) as opened:
        return opened.read(1) == b"{"


class RunLedger:
    """The file of a user's runs.

    Args:
        path: the file, or a link to it; made by the first run. epsilon: the total of all runs; None if the file has it.
        delta: of the total.

    Raises:
        UsageError: a new file without a total, another total than the file's, or a damaged file.
        StorageError: the file has several hard links.
    """

    def __init__(self, path: Path, epsilon: float | None, delta: float) -> None:
        self._path, self._place = path, path.resolve()  # all links to a file share its runs
        self._new = None
        if epsilon is not None:
            accounting.mu_of(epsilon, delta)  # checks both
            self._new = _Content(epsilon=epsilon, delta=delta)
        require_one_name(self._place)
        known = self._read()
        if epsilon is not None and (known.epsilon, known.delta) != (epsilon, delta):
            found = f"{at_most(epsilon)} at delta {at_most(delta)}"
            raise UsageError(
                f"--ledger-epsilon {found}: the total of {path} is {at_most(known.epsilon)} at delta "
                f"{at_most(known.delta)}; leave out --ledger-epsilon"
            )

    def check(self, cost: PrivacyCost, not_private: Sequence[str] = ()) -> None:
        """Refuse a run that exceeds the total, or that is not private for some reasons. Raises `UsageError`."""
        if not_private:
            raise UsageError(
                f"--ledger counts what private runs cost, and this is a trial that is not private: "
                f"{'; '.join(not_private)}; leave out --ledger"
            )
        self._require(self._read(), cost)

    def spend(self, job: str, cost: PrivacyCost) -> None:
        """Write a run down. Raises `UsageError` if it exceeds the total by now, or the file cannot be written."""
        with self._alone():
            require_one_name(self._place)
            known = self._read()
            self._require(known, cost)
            runs = (*known.runs, SwarmRun(at=iso(now_ms()), job=job, cost=cost))
            changed = msgspec.structs.replace(known, runs=runs)
            self._write(msgspec.json.format(msgspec.json.encode(changed), indent=1) + b"\n")

    def _write(self, content: bytes) -> None:
        """Replace the file. It is on the disk when this returns."""
        with whole_file(self._place) as place, place.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            sync_folder(self._place.parent)
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error.strerror}") from None

    def spending(self) -> Spending:
        """Return the runs as charges, what they have spent together, and what is left."""
        known = self._read()
        spent, delta = total(one.cost for one in known.runs), known.delta
        runs = [
            Charged(
                number=number,
                at=run.at,
                statistic=run.job,
                epsilon=run.cost.epsilon(delta),
                delta=0.0 if run.cost.is_pure else delta,
                mu=run.cost.mu,
                slack=run.cost.slack,
                returned=False,
                counts=True,
                round_id="",
                trainer="",
                trainer_name=None,
                invited=None,
                relation="",
            )
            for number, run in enumerate(known.runs, 1)
        ]
        return Spending(
            role=RUNS,
            store=str(self._path),
            federation=None,
            delta=delta,
            period_days=None,
            mu_spent=spent.mu,
            pure_spent=spent.pure,
            slack_spent=spent.slack,
            epsilon_spent=spent.epsilon(delta),
            epsilon_allowed=known.epsilon,
            epsilon_for_reports=None,
            epsilon_left=spent.left(known.epsilon, delta),
            pure_left=spent.left_pure(known.epsilon, delta),
            epsilon_per_round_max=None,
            charges=runs,
            declined=[],
            warnings=[],
        )

    def words(self) -> str:
        """Return what was spent and what is left, in a line for people."""
        known = self._read()
        spent, runs = total(one.cost for one in known.runs), counted(len(known.runs), "run")
        used, of = at_least(spent.epsilon(known.delta)), f"{at_most(known.epsilon)} at delta {at_most(known.delta)}"
        left = at_most((spent.left_pure if spent.is_pure else spent.left)(known.epsilon, known.delta))
        kind = " with reports of delta 0" if spent.is_pure else ""
        return f"epsilon {used} of {of} in {runs} by {self._path}; {left} is left for one more{kind}"

    def _require(self, known: _Content, cost: PrivacyCost) -> None:
        spent = total(one.cost for one in known.runs)
        if (spent + cost).within(known.epsilon, known.delta):
            return
        left = (spent.left_pure if cost.is_pure else spent.left)(known.epsilon, known.delta)
        raise UsageError(
            f"{self._path}: found a run of epsilon {at_least(cost.epsilon(known.delta))}, expected at most "
            f"{at_most(left)}, which {counted(len(known.runs), 'run')} left of {at_most(known.epsilon)} at delta "
            f"{at_most(known.delta)}; lower --epsilon, or take other rows, with a ledger of their own"
        )

    def _read(self) -> _Content:
        if not self._place.exists():
            if self._new is None:
                raise UsageError(f"{self._path} does not exist: give the total of all runs as well, --ledger-epsilon 4")
            return self._new
        try:
            return msgspec.json.decode(read_text(self._path), type=_Content)
        except msgspec.DecodeError as error:
            raise InputError(f"{self._path} is no ledger of runs, or is damaged: {error}; name another file") from None

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other runs away from the file meanwhile."""
        try:
            self._place.parent.mkdir(parents=True, exist_ok=True)
            lock = locked(self._place.parent, os.O_RDONLY, f"the folder of {self._path}", "", wait=True)
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error.strerror}") from None
        try:
            yield
        finally:
            release(lock)
