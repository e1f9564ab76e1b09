"""The options of `dca account`: what each means, as its help says it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Clients = Annotated[int, typer.Option(help="N, how many clients take part.")]
Epsilon = Annotated[float, typer.Option(help="What the whole job may cost each client.")]
Delta = Annotated[float, typer.Option(help="The delta of that cost, far below 1/N.")]
Tolerate = Annotated[int | None, typer.Option(help="T, how many may drop out or collude; by default N / 10.")]
Colluders = Annotated[int, typer.Option(help="c, how many of the T are reserved for colluders.")]
Computes = Annotated[int, typer.Option(help="M, the number of Compute nodes.")]
Statistics = Annotated[
    list[str] | None, typer.Option(help="What is computed, by default sum; several rounds: repeat it, or A,B.")
]
Columns = Annotated[str | None, typer.Option(help="Names of the columns, A,B,C; a regression's target last.")]
Dimension = Annotated[
    int | None, typer.Option(help="Or how many columns (bins, of a histogram); by default the fewest.")
]
Bound = Annotated[float | None, typer.Option(help="Every column lies within ± this; by default 1.")]
Bounds = Annotated[str | None, typer.Option(help="Or the public bounds of each: COL=LO:HI,... or a TOML file.")]
Parameters = Annotated[list[str] | None, typer.Option(help="A further NAME=JSON of a statistic; repeat.")]
RowsMax = Annotated[int, typer.Option(help="R, to add up to R rows of a client; 0 for their mean.")]
FractionBits = Annotated[int, typer.Option(help="f of the grid 2^-f, even.")]
Shares = Annotated[str, typer.Option(help="Of the budget (of mu²) for each round, A,B,..., or best.")]
Also = Annotated[
    list[str] | None,
    typer.Option(help="What else is spent on the same clients, KIND:VALUE such as laplace:0.1 or pure:0.5; repeat."),
]
PlotTo = Annotated[Path | None, typer.Option("--plot", help="A picture over N and T.", metavar="FILE.png")]
JsonTo = Annotated[str | None, typer.Option("--json", help="Write the figures to a file, or - for stdout.")]
