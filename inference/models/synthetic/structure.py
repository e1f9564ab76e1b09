"""Which marginals are counted, with which weights, and how large the model of them is.

**Public rules.** All columns are counted alone. Pairs are those that the user names, those with the target, or a tree.

**A tree.** A first round counts all pairs with a part of the budget. With P = I - p1ᵀ and Q = I - q1ᵀ, p and q the
shares of both columns, D = PMQᵀ is the table less what independent columns would have: zero if they are. Noise adds
σ²|P|²|Q|² to |D|², in Frobenius norms, and varies by σ²√2·|PPᵀ||QQᵀ|. The chance of who takes part adds n·tr S·tr T,
with S = diag(p) - ppᵀ and T likewise, and varies by n√2·|S||T|. The score of a pair is |D|² less both means. The tree
is a spanning one of the largest scores, among pairs whose score exceeds `_SDS` standard deviations. So columns of which
noise hides every dependence stay alone.

**Weights.** With weights w_m, a marginal of K_m cells has a squared error of K_m·2σ²Σw²/w_m². The sum of all is least
for w_m² in proportion to √K_m.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np

from dca_proto.statistics.marginals import MARGINALS_MAX, ORDER_MAX
from dca_proto.wording import listed
from inference.errors import DataError, unknown
from inference.models.synthetic.grid import Grid, Places, Table
from inference.problem import Array

TREE, NONE, TARGET = RULES = ("tree", "none", "target")
CELLS_MAX, CLIQUE_MAX = 2**18, 2**22  # coordinates of one sum; cells of all cliques of the model
_SDS = 3.0
_FINE = 16  # weights are whole numbers of about this size


def require_pairs(key: str, value: str) -> None:
    """Refuse a text that is neither a rule nor a list of tables of several columns. Raises `DataError`."""
    if not isinstance(value, str) or (value not in RULES and not all(":" in part for part in value.split(","))):
        raise DataError(
            f"setting {key!r} is {value!r}; expected one of {', '.join(RULES)}, or pairs of columns, as in "
            "age:income,sex:income"
        )


def named_tables(grid: Grid, pairs: str) -> list[Places]:
    """Return the marginals of several columns that a text names, as in ``age:income,sex:income``.

    Raises:
        DataError: a column is unknown, or a marginal has not two or three of them.
    """
    found: list[Places] = []
    for part in pairs.split(","):
        names = [name.strip() for name in part.split(":")]
        for name in names:
            if name not in grid.names:
                raise unknown("column", name, "the data", grid.names)
        if not 2 <= len(set(names)) == len(names) <= ORDER_MAX:
            raise DataError(f"setting 'pairs': {part!r} joins {len(set(names))} columns; expected 2 to {ORDER_MAX}")
        found.append(tuple(sorted(grid.names.index(name) for name in names)))
    return list(dict.fromkeys(found))


def public_tables(grid: Grid, pairs: str) -> list[Places] | None:
    """Return the marginals of several columns by a public rule; None if a first round chooses a tree."""
    d = len(grid.names)
    if pairs == TREE:
        return all_pairs(grid) if d <= 2 else None
    if pairs == NONE:
        return []
    return [(place, d - 1) for place in range(d - 1)] if pairs == TARGET else named_tables(grid, pairs)


def all_pairs(grid: Grid) -> list[Places]:
    """Return the marginals of all pairs of columns."""
    return list(combinations(range(len(grid.names)), 2))


def with_columns(grid: Grid, tables: Sequence[Places]) -> list[Places]:
    """Return each column alone, then these marginals."""
    return [(place,) for place in range(len(grid.names))] + list(tables)


def weights_of(grid: Grid, tables: Sequence[Places]) -> list[int]:
    """Return the weight of each marginal."""
    roots = np.array([prod(grid.sizes[place] for place in places) for places in tables]) ** 0.25
    return [int(weight) for weight in np.maximum(1, np.rint(_FINE * roots / roots.mean()))]


# --- the size of the model --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Elimination:
    """An order in which a model's columns are summed out.

    Attributes:
        order: of the columns. cliques: by column, the columns that it is joined with when it is its turn, itself first.
    """

    order: tuple[int, ...]
    cliques: tuple[Places, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], tables: Iterable[Places]) -> Elimination:
        """Return a greedy order: the smallest clique first."""
        joined: dict[int, set[int]] = {place: set() for place in range(len(sizes))}
        for one, other in (pair for places in tables for pair in combinations(places, 2)):
            joined[one].add(other)
            joined[other].add(one)
        order, cliques = [], []
        while joined:
            place = min(joined, key=lambda one: (prod(sizes[other] for other in (one, *joined[one])), one))
            near = joined.pop(place)
            order.append(place)
            cliques.append((place, *sorted(near)))
            for one in near:
                joined[one] |= near - {one}
                joined[one].discard(place)
        return cls(tuple(order), tuple(cliques))


def check_size(grid: Grid, tables: Sequence[Places], *, is_first: bool = False) -> None:
    """Refuse marginals whose sum or model would be too large, before any budget is spent.

    Args:
        tables: with those of single columns. is_first: whether these are all pairs, for a tree.

    Raises:
        DataError: names what to drop.
    """
    sizes = grid.sizes
    cells = sum(prod(sizes[place] for place in places) for places in tables)
    widest = listed([grid.names[place] for place in sorted(range(len(sizes)), key=lambda one: -sizes[one])[:3]])
    if len(tables) > MARGINALS_MAX or cells > CELLS_MAX:
        name = "; or name the pairs that matter: --set pairs=a:b,b:c" if is_first else "; or fewer pairs"
        raise DataError(
            f"{len(tables):,} marginals have {cells:,} cells, and each client would send as many numbers; expected at "
            f"most {MARGINALS_MAX:,} and {CELLS_MAX:,}: leave out columns, most of all {widest}, or give fewer "
            f"--set bins{name}"
        )
    if is_first:
        return
    found = Elimination.of(sizes, tables)
    large = max(found.cliques, key=lambda places: prod(sizes[place] for place in places))
    whole = sum(prod(sizes[place] for place in places) for places in found.cliques)
    if whole > CLIQUE_MAX:
        within = [grid.title(places) for places in tables if len(places) > 1 and set(places) <= set(large)]
        raise DataError(
            f"these pairs close circles, so that the model has {whole:,} cells, most of them for "
            f"{listed([grid.names[place] for place in large])} together; expected at most {CLIQUE_MAX:,}: drop a pair "
            f"such as {listed(within, 6)}, or give fewer --set bins"
        )


# --- the tree ---------------------------------------------------------------------------------------------------------


def dependence(table: Array, sd: float, first: Array, second: Array) -> tuple[float, float]:
    """Return the squared distance of a table of counts from independence, and its standard deviation if there is none.

    Args:
        table: noisy counts. sd: of the noise of each. first, second: shares of the rows' and the columns' cells.
    """
    P, Q = (np.eye(len(shares)) - shares[:, None] for shares in (first, second))
    apart = P @ table @ Q.T
    S, T = (np.diag(shares) - np.outer(shares, shares) for shares in (first, second))
    n = max(float(table.sum()), 1.0)
    mean = sd**2 * np.sum(P**2) * np.sum(Q**2) + n * np.trace(S) * np.trace(T)
    norms = [[float(np.linalg.norm(one)) for one in pair] for pair in ((P @ P.T, Q @ Q.T), (S, T))]
    spread = 2**0.5 * (sd**2 * norms[0][0] * norms[0][1] + n * norms[1][0] * norms[1][1])
    return float(np.sum(apart**2) - mean), spread


def tree(counts: dict[Places, Array], sds: dict[Places, float], columns: int) -> list[Places]:
    """Return the pairs of a spanning tree of the largest dependences that noise does not hide.

    Args:
        counts, sds: noisy tables of all pairs, and the standard deviation of the noise of each cell.
    """
    shares = [_shares(place, counts, sds) for place in range(columns)]
    scores = {}
    for pair, table in counts.items():
        score, spread = dependence(table, sds[pair], shares[pair[0]], shares[pair[1]])
        if score > _SDS * spread:
            scores[pair] = score
    group, chosen = list(range(columns)), []
    for pair in sorted(scores, key=lambda one: (-scores[one], one)):
        first, second = group[pair[0]], group[pair[1]]
        if first != second:
            chosen.append(pair)
            group = [first if one == second else one for one in group]
    return sorted(chosen)


def tree_of(tables: Iterable[Table], columns: int) -> list[Places]:
    """Return the tree of released marginals of all pairs."""
    known = {table.places: table for table in tables}
    counts = {places: table.counts for places, table in known.items()}
    return tree(counts, {places: table.sd for places, table in known.items()}, columns)


def _shares(place: int, counts: dict[Places, Array], sds: dict[Places, float]) -> Array:
    """Return the shares of a column's cells: the mean over all pairs with it, each with the weight of its noise."""
    total, weight = np.zeros(1), 0.0
    for pair, table in counts.items():
        if place in pair:
            axis = 1 - pair.index(place)
            precision = 1 / max(table.shape[axis] * sds[pair] ** 2, 1e-12)
            total, weight = total + precision * table.sum(axis=axis), weight + precision
    found = np.clip(total / weight, 0.0, None)
    return np.asarray(found / found.sum() if found.sum() > 0 else np.full(len(found), 1 / len(found)))
