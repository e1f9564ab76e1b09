"""The terms of a verified sum: its statement, its noise, and the choices that a trainer makes for it (DESIGN §12).

Everybody computes the statement and the cost from the announcement. Only the trainer chooses the grid and the noise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from dca_proto.crypto.bounded import BLOCK_BITS_MAX, NOISE_BITS_MAX, Statement
from dca_proto.crypto.field import ELEMENT_BYTES
from dca_proto.crypto.masks import WORD_BYTES
from dca_proto.errors import UsageError
from dca_proto.privacy.mechanism import Mechanism
from dca_proto.privacy.verified import TAU, UNIFORMS_MIN, ReleaseCost, release_cost
from dca_proto.protocol.params import MIB, Limits
from dca_proto.protocol.wire.kinds import VerifiedSum
from dca_proto.statistics import Statistic
from dca_proto.statistics.contribution import client_sensitivity
from dca_proto.statistics.statement import Moved, moved, range_statement
from dca_proto.wording import counted

MECHANISM = "coin-flipped-bits"
"""The name of the noise mechanism of verified sums."""
OPENINGS_BYTES_MAX = 8 * MIB
"""The most bytes of a node's openings of n_max entries."""
_CLIENT_VARIANCE_MAX, _CLIENT_VARIANCE_MIN = 64.0**2, 2.0**2
"""Square grid units: a finer grid makes proofs longer and no result better, a coarser one adds rounding errors."""
_ROUNDED_VARIANCE_MAX, _HARDLY = 1024.0**2, 1.02
"""The same where rounding adds to Δ, as in means of rows: there a finer grid makes results better. In these, it adds
more than 2 % to the variance."""
ROUNDING_VARIANCE = 0.25
"""Square grid units: the most that rounding adds to a client's noise. A value that is a part φ of a unit above a point
is rounded up with the probability φ, which adds φ(1 - φ)."""
_DEVICE_US, _ALL_US, _NODE_US, _PAIR_US = 100.0, 10.0, 0.25, 40.0
"""Microseconds a word: of a slow device for its proof, of all contributions on one busy machine, of a slow node; and
of a node for each pair key."""
_WINDOW_MS_MAX, _NODE_MS_MAX = 20 * 60_000, 60_000
_FAILED = re.compile(r"; the proofs of (\d{1,8}) failed: ")
_KAPPA = 13.5
"""About κ - 1 times the number of uniform numbers, to begin with (`privacy.verified` computes κ)."""
_WASTE = 1.15
"""Variance that a short proof may have, relative to what μ asks for before rounding; what rounding adds to Δ and to the
variance, and κ, are included."""
_WASTE_OF_NORM, _SHORTER = 1.4, 1.1
"""The same where none of these has a norm: of some thousands of numbers, whose squares fit the field on coarse grids
only. Without a norm, a liar gets about √d times as far. And how much more than the least of them is worth a shorter
proof."""


class Work(NamedTuple):
    """What a round asks of its members, above all its proofs: windows and patience follow from it (DESIGN §12).

    Attributes:
        words: of each contribution. clients: how many are expected.
    """

    words: int
    clients: int

    @property
    def window_ms(self) -> int:
        """The shortest window, for contributions as for the nodes: a device takes 0.1 to 10 µs a word for a proof.

        All contributions pass through one broker, and in a swarm one machine makes them all.
        """
        return min(_WINDOW_MS_MAX, math.ceil(self.words * (_DEVICE_US + _ALL_US * self.clients) / 1000))

    @property
    def node_ms(self) -> int:
        """How much longer a node may be silent, as it adds up all masks and opens all proofs, in whole seconds.

        A server takes 0.01 to 0.05 µs a word.
        """
        seconds = int(self.clients * (_PAIR_US + self.words * _NODE_US) / 1e6)
        return min(_NODE_MS_MAX, 1000 * seconds)

    @property
    def in_words(self) -> str:
        """Return ``the proofs of 20 contributions of 2.8 MB``."""
        size = self.words * ELEMENT_BYTES
        shown = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{math.ceil(size / 1e3):,} kB"
        return f"the proofs of {counted(self.clients, 'contribution')} of {shown}"


def mechanism_name(mechanism: Mechanism) -> str:
    """Return the name of the mechanism of verified sums, for actors with this one; tests have one without noise."""
    return MECHANISM if mechanism.private else mechanism.name


def statement_of(kind: VerifiedSum, statistic: Statistic, rows_max: int, fraction_bits: int) -> Statement:
    """Return what each client proves. Raises `UsageError` if the statistic cannot be verified.

    Of so many clients that openings of a norm are too large, none proves one.
    """
    statement = range_statement(statistic, rows_max, fraction_bits)
    statement = msgspec.structs.replace(statement, noises=kind.noises, noise_bits=kind.noise_bits)
    return statement if kind.n_max <= _clients_max(statement) else msgspec.structs.replace(statement, norm=None)


def _clients_max(statement: Statement) -> int:
    """Return of how many clients a node's openings have a size that is allowed."""
    return OPENINGS_BYTES_MAX // (ELEMENT_BYTES * statement.opened)


def check_statement(statement: Statement, kind: VerifiedSum, limits: Limits) -> None:
    """Refuse a statement that does not fit the field, or messages. Raises `UsageError`."""
    statement.check(kind.n_max)
    if kind.n_max > (most := _clients_max(statement)):
        raise UsageError(f"n_max is {kind.n_max}; a verified sum has at most {most:,} clients: lower clients or n_max")
    if ELEMENT_BYTES * statement.words > WORD_BYTES * limits.dimension_max:
        raise UsageError(
            f"a verified contribution has {statement.words:,} words; expected at most "
            f"{WORD_BYTES * limits.dimension_max // ELEMENT_BYTES:,}: ask for fewer columns or bins"
        )


def failed_in(abort: str) -> int:
    """Return how many proofs failed, as a node's abort says (`compute.proofs.failed_words`): 0 if it says nothing."""
    found = _FAILED.search(abort)
    return int(found[1]) if found else 0


def slack_of(dimension: int) -> float:
    """Return how far a verified release differs from one that is μ-private, at most."""
    return dimension * TAU


def noise_variance(kind: VerifiedSum, statement: Statement, reach: Moved, mu: float, mechanism: Mechanism) -> float:
    """Return the variance of one client's noise in squared grid units. Raises `UsageError` if it is too small for μ."""
    if not mechanism.private:
        return statement.noise_variance(1)
    if not kind.noises or kind.honest * kind.noises < UNIFORMS_MIN:
        raise UsageError(
            f"noises is {kind.noises} with {kind.honest} honest clients; a verified sum has {UNIFORMS_MIN} noise "
            "numbers of honest clients or more for each coordinate"
        )
    cost = _cost(kind, reach, len(statement.sizes), kind.noises, kind.noise_bits)
    if cost.mu > mu:
        raise UsageError(f"the noise of this verified sum costs mu {cost.mu!r}, and {mu!r} is announced; add noise")
    return statement.noise_variance(1)


def _cost(kind: VerifiedSum, reach: Moved, dimension: int, noises: int, noise_bits: int) -> ReleaseCost:
    honest = max(kind.honest, 1)
    return release_cost(reach.sensitivity, dimension, honest, noises, noise_bits, structured=reach.is_rounded)


class _Choice(NamedTuple):
    """A grid with noise: how much variance it has relative to what is wanted, and bits of a coordinate's proof.

    Attributes:
        has_norm: whether clients prove a norm.
    """

    waste: float
    bits: float
    fraction_bits: int
    noises: int
    noise_bits: int
    has_norm: bool


def with_noise(
    kind: VerifiedSum, statistic: Statistic, rows_max: int, fraction_bits: int, mu: float, mechanism: Mechanism
) -> tuple[VerifiedSum, int]:
    """Return the kind with a trainer's choice of noise, and the fraction bits of the grid.

    Of grids up to `fraction_bits`, and of noises that are hardly more than μ asks for, it takes those with the shortest
    proof; without noise, the finest grid. If some of them have a norm, it takes one of these, and a coarser grid with a
    norm if none has. Raises `UsageError` for a statistic that cannot be verified, or if no noise is enough.
    """
    if not mu > 0:
        raise UsageError("delta is too small for a verified sum: its slack takes all of it; raise delta")
    plain = client_sensitivity(statistic, rows_max, fraction_bits).l2  # a grid that no plain sum can have is refused
    kind = msgspec.structs.replace(kind, mechanism=mechanism_name(mechanism))
    quietly = msgspec.structs.replace(kind, noises=0, noise_bits=1)
    quiet: list[tuple[bool, int]] = []  # without noise: whether there is a norm, and the grid
    found: list[_Choice] = []
    coarsest: list[_Choice] = []  # of a range that coarser grids do not fit, or under more noise than they ask for
    for bits in range(fraction_bits, -1, -2):
        try:
            statement = statement_of(quietly, statistic, rows_max, bits)
            statement.check(2 * kind.n_max)  # as much room again for noise
        except UsageError:
            if bits or coarsest or quiet:
                continue
            statement = statement_of(quietly, statistic, rows_max, bits)
        if not mechanism.private:
            quiet.append((statement.norm is not None, bits))
            continue
        reach = moved(statistic, rows_max, bits)
        farthest = reach.sensitivity + math.sqrt(statistic.dimension) * reach.is_rounded
        wanted, asked = (
            (moves / mu) ** 2 / max(kind.honest, 1) for moves in (farthest, math.ldexp(plain, bits - fraction_bits))
        )
        each = list(_noises(kind, statement, bits, wanted, asked))
        fitting = [one for one in each if _fits(statement, kind.n_max, one)]
        coarsest = fitting or each
        adds = reach.is_rounded or wanted > _HARDLY * asked
        if wanted < (_ROUNDED_VARIANCE_MAX if adds else _CLIENT_VARIANCE_MAX):
            found += fitting
        if wanted < _CLIENT_VARIANCE_MIN:
            break
    if quiet:
        return quietly, max(quiet)[1]
    found = found or coarsest
    least = min(found).waste
    allowed = [one for one in found if one.waste <= max(_WASTE, 1.02 * least)]
    if not any(one.has_norm for one in allowed):
        proven = [one for one in found if one.has_norm and one.waste <= _WASTE_OF_NORM]
        allowed = [one for one in proven if one.waste <= _SHORTER * min(proven).waste] or allowed
    chosen = min(allowed, key=lambda one: (not one.has_norm, one.bits))
    reach = moved(statistic, rows_max, chosen.fraction_bits)
    noises = _enough(kind, reach, statistic.dimension, mu, chosen.noises, chosen.noise_bits)
    return msgspec.structs.replace(kind, noises=noises, noise_bits=chosen.noise_bits), chosen.fraction_bits


def _fits(statement: Statement, clients: int, choice: _Choice) -> bool:
    """Return True if sums over so many clients, with this noise, fit the field and a proof."""
    noisy = msgspec.structs.replace(statement, noises=choice.noises, noise_bits=choice.noise_bits)
    is_short = choice.bits * len(statement.sizes) <= BLOCK_BITS_MAX
    return is_short and noisy.largest_sum(clients) < statement.field.prime


def _noises(
    kind: VerifiedSum, statement: Statement, fraction_bits: int, wanted: float, unrounded: float
) -> Iterator[_Choice]:
    """Yield the least noise of each width, on one grid, where one client needs a variance of `wanted` units².

    Before rounding to a grid, it would be `unrounded`, in the same units.
    """
    honest = max(kind.honest, 1)
    fewest = math.ceil(UNIFORMS_MIN / honest)
    of_range = sum(number.bit_length() for number in statement.numbers) / len(statement.sizes)
    has_norm = statement.norm is not None
    for noise_bits in range(1, NOISE_BITS_MAX + 1):
        each, noises = ((1 << 2 * noise_bits) - 1) / 12, fewest
        for _ in range(3):  # κ depends on the number of noise numbers
            kappa = 1 + _KAPPA / (honest * noises)
            noises = max(fewest, math.ceil(wanted * kappa**2 / each))
        waste = (noises * each + ROUNDING_VARIANCE) / unrounded
        yield _Choice(waste, of_range + noises * noise_bits, fraction_bits, noises, noise_bits, has_norm)
        if noises == fewest:
            return  # more bits would only add noise


def _enough(kind: VerifiedSum, reach: Moved, dimension: int, mu: float, noises: int, noise_bits: int) -> int:
    """Return the least number of noise numbers from `noises` on, or a little more, that costs at most μ."""
    while True:
        cost = _cost(kind, reach, dimension, noises, noise_bits)
        if cost.mu <= mu:
            return noises
        noises = max(noises + 1, math.floor(noises * (cost.mu / mu) ** 2))
