"""`dca scaling`: measures how rounds scale, compares them with the paper, and predicts rounds too large to measure."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, get_args

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TimeRemainingColumn

from dca_proto import engine as engines
from dca_proto.cli import options
from dca_proto.cli.output import draw, keep_earlier, require_plot_target, result_console, say
from dca_proto.cli.progress import PatientBar, Words
from dca_proto.cli.show import show
from dca_proto.errors import UsageError
from dca_proto.protocol.terms import Verified
from dca_proto.runtime.broker import find_mosquitto
from dca_proto.runtime.files import STDOUT, write_json
from dca_proto.wording import counted
from emulator.report import scaling as view
from emulator.scaling import costs
from emulator.scaling.cell import EMULATED, MOSQUITTO, Cell, Size, SweepOptions
from emulator.scaling.figures import Figures, warnings_of
from emulator.scaling.measure import measure_apart
from emulator.scaling.predict import Machine, far_beyond, parse_size, predict, require_computes
from emulator.scaling.record import Scaling, SweepJournal, read_scaling

_SWEEP = {"clients": "100,1000", "dimension": "10,100", "computes": "10"}
_CALIBRATION = {"clients": "100,250,600", "dimension": "10,1000,4000", "computes": "3,10"}
"""Sizes for a calibration of about a minute on one core."""
_REPEATS, _REPEATS_CALIBRATION = 5, 3

OUTPUT = Scaling
EXAMPLES = """Examples:

  dca scaling --clients 100,1000 --dimension 10,100,1000 --json scaling.json --plot scaling.png

  dca scaling --clients 100,1000,10000 --dimension 10,100,1000 --journal sweep.json --json scaling.json

  dca scaling --clients 500 --dimension 10 --tolerate 0,0.1,0.3 --drop-rate 0,0.05,0.2

  dca scaling --clients 100,1000 --dimension 10,100,1000 --verified       each client proves its bounds

  dca scaling --predict "clients=1e7,dimension=1e4,computes=10" --calibration scaling.json
"""


def scaling(
    clients: Annotated[str | None, typer.Option(help="N, a list such as 100,1000,10000.")] = None,
    dimension: Annotated[str | None, typer.Option(help="d, how many numbers are summed; a list.")] = None,
    computes: Annotated[str | None, typer.Option(help="M, the number of Compute nodes; a list.")] = None,
    tolerate: Annotated[str, typer.Option(help="T, shares of N (below 1) or numbers of clients; a list.")] = "0.1",
    drop_rate: Annotated[str, typer.Option(help="Probability that a client drops out of a round; a list.")] = "0",
    verified: Annotated[bool, typer.Option("--verified", help=get_args(Verified)[1].description)] = False,
    backend: Annotated[str, typer.Option(help="emulated, or mosquitto for a live swarm.")] = EMULATED,
    rounds: Annotated[int | None, typer.Option(help="Measured rounds of each cell; by default 5.")] = None,
    processes: Annotated[
        int | None, typer.Option(help="Processes that share the actors; by default one per core, at most M or N.")
    ] = None,
    engine: Annotated[str, typer.Option(help=engines.HELP)] = engines.LOCAL,
    journal: options.Journal = None,
    predict_size: Annotated[
        str | None, typer.Option("--predict", help='Predict a round: "clients=1e7,dimension=1e4,computes=10".')
    ] = None,
    calibration_file: Annotated[
        Path | None, typer.Option("--calibration", help="Predict from the JSON of an earlier sweep.")
    ] = None,
    round_s: Annotated[float, typer.Option(help="How long a predicted round may take.")] = 3600.0,
    machine_cores: Annotated[float, typer.Option(help="Cores of each predicted machine.")] = 16,
    machine_memory_gb: Annotated[float, typer.Option(help="Memory of each, in GB.")] = 64,
    machine_network_gbit: Annotated[float, typer.Option(help="Network of each, in Gbit/s.")] = 10,
    broker_messages_s: Annotated[float, typer.Option(help="Messages/s, in and out, of a broker machine.")] = 100_000,
    load: Annotated[float, typer.Option(help="The part of a machine's capacity to use.")] = 0.5,
    plot: options.Plot = None,
    json_to: options.Json = None,
) -> int:
    """Measure how rounds grow with N, d and M, and compare with the paper's Table 1; or predict larger rounds.

    Encryption, signatures and exact noise are on. Each cell is measured in processes of its own, with Python's garbage
    collector off. Sessions are set up before; the first round, in which pairs agree on keys, is timed separately.
    wall_s is the time from the trainer's command to the result. A process that runs many clients verifies an
    announcement's signature once for all of them.

    `dca schema scaling` describes the fields of the JSON object. Fields that do not apply are null.
    """
    console = result_console(json_to)
    if journal is not None and str(journal) == STDOUT:
        raise UsageError("--journal -: expected the name of a file")
    require_plot_target(plot)
    texts = {"clients": clients, "dimension": dimension, "computes": computes}
    predicted_size = None if predict_size is None else parse_size(predict_size)
    hardware = Machine(
        cores=machine_cores,
        memory_gb=machine_memory_gb,
        network_gbit=machine_network_gbit,
        broker_messages_s=broker_messages_s,
        load=load,
        round_s=round_s,
    )
    hardware.check()
    if predicted_size is None and hardware != Machine():
        raise UsageError("--round-s, --machine-..., --broker-messages-s and --load go with --predict")
    sweep = _sweep(texts, tolerate, drop_rate, backend, rounds, processes, predicted_size is not None, verified)
    if calibration_file is not None:
        if predicted_size is None:
            raise UsageError("--calibration goes with --predict; to measure, leave it out")
        others = [f"--{name}" for name, text in texts.items() if text is not None]
        if others or journal is not None:
            excluded = ", ".join(others) or "--journal"
            raise UsageError(f"--calibration and {excluded} exclude each other: a calibration is measured already")
        measured = read_scaling(calibration_file)
    else:
        if predicted_size is not None:
            require_computes(predicted_size, sweep.computes)
            costs.require_cells(len([cell for cell in sweep.cells() if cell.is_plain]))
        measured = _measure(sweep, journal, engine, console)
    result = _fit(measured) if predicted_size is None else _predict(predicted_size, measured, hardware)
    _show(result, console)
    keep_earlier(console, json_to, plot)
    write_json(result, json_to)
    if plot is not None:
        _plot(result, plot, console)
    return 0


# --- options ---------------------------------------------------------------------------------------------------------


def _sweep(
    texts: Mapping[str, str | None],
    tolerate: str,
    drop_rate: str,
    backend: str,
    rounds: int | None,
    processes: int | None,
    is_prediction: bool,
    verified: bool,
) -> SweepOptions:
    defaults = _CALIBRATION if is_prediction else _SWEEP
    sizes: dict[str, list[int]] = {}
    for name, text in texts.items():
        values = _numbers(f"--{name}", defaults[name] if text is None else text)
        if any(value != int(value) for value in values):
            raise UsageError(f"--{name} {text!r}: expected whole numbers")
        sizes[name] = [int(value) for value in values]
    share = max(1, min(engines.cores(), *sizes["computes"], *sizes["clients"]))  # each process has work in every cell
    sweep = SweepOptions(
        **sizes,
        tolerate=_numbers("--tolerate", tolerate),
        drop_rates=_numbers("--drop-rate", drop_rate),
        backend=backend,
        repeats=(_REPEATS_CALIBRATION if is_prediction else _REPEATS) if rounds is None else rounds,
        processes=share if processes is None else processes,
        verified=verified,
    )
    sweep.cells()
    if is_prediction and verified:
        raise UsageError("--verified with --predict: costs are calibrated without proofs; leave one out")
    if is_prediction and backend != EMULATED:
        raise UsageError(f"--predict with --backend {backend}: costs are calibrated with the {EMULATED} backend")
    if backend == MOSQUITTO and find_mosquitto() is None:
        raise UsageError("--backend mosquitto: mosquitto is not installed; install it, or use --backend emulated")
    return sweep


def _numbers(option: str, text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} {text!r}: expected numbers with commas between them") from None
    if not all(map(math.isfinite, values)):
        raise UsageError(f"{option} {text!r}: expected finite numbers")
    return list(dict.fromkeys(values))


# --- measuring and fitting -------------------------------------------------------------------------------------------


def _measure(sweep: SweepOptions, journal: Path | None, engine: str, console: Console) -> Scaling:
    """Measure the cells that are not in the journal, with a progress bar, or a line for each without a terminal."""
    cells = sweep.cells()
    record = SweepJournal(journal, sweep)
    todo = record.missing(cells)
    kept = f"; {len(cells) - len(todo)} are in {journal}" if len(todo) < len(cells) else ""
    expected_s = sum(cell.estimate_s for cell in todo)
    size = f"{counted(len(cells), 'cell')}, {counted(sweep.repeats, 'round')} each"
    processes = f"{sweep.processes} process{'es' * (sweep.processes != 1)}"
    say(console, "sweep", f"{size}, backend {sweep.backend}, {processes}{kept}")
    say(console, "time", f"roughly {_duration(expected_s)}; encryption and exact noise are on")
    columns = (Words("{task.description:<36}"), BarColumn(bar_width=24), TaskProgressColumn())
    began_s, done = time.monotonic(), list[Cell]()

    def measure(cell: Cell) -> Figures:
        bar.reach(sum(earlier.estimate_s for earlier in done), f"{len(done) + 1}/{len(todo)} {cell}")
        figures = measure_apart(cell, chosen)
        done.append(cell)
        done_s = sum(finished.estimate_s for finished in done)
        left_s = (time.monotonic() - began_s) / done_s * (expected_s - done_s)
        left = f"about {_duration(left_s)} left" if len(done) < len(todo) else "all measured"
        if not console.is_terminal:
            say(console, f"{len(done)}/{len(todo)}", f"{cell}: {figures.wall_s:.3g} s a round; {left}")
        return figures

    try:
        with (
            engines.open_engine(engine) as chosen,
            PatientBar(console, max(expected_s, 1e-9), "", *columns, TimeRemainingColumn()) as bar,
        ):
            figures = record.run(cells, measure)
    except KeyboardInterrupt:
        kept = "not kept: name a --journal FILE" if journal is None else f"in {journal}: the same command resumes"
        say(console, "interrupted", f"{len(record)} of {len(cells)} cells are finished, and {kept}")
        raise
    return msgspec.structs.replace(record.sweep, cells=figures)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _fit(measured: Scaling) -> Scaling:
    """Add exponents, warnings and, if there are enough cells, costs."""
    base = view.base_cells(measured.cells)
    result = msgspec.structs.replace(measured, fits=costs.growths(base), warnings=[*warnings_of(base, slower=True)])
    try:
        usable = costs.usable(base)
    except UsageError as error:
        return msgspec.structs.replace(result, warnings=[*result.warnings, f"no prediction: {error}"])
    return _with_costs(result, usable, costs.fit_all(usable))


def _predict(size: Size, measured: Scaling, hardware: Machine) -> Scaling:
    """Add a prediction for a larger round, its costs, exponents and warnings."""
    usable = costs.usable(measured.cells)
    fitted = costs.fit_all(usable)
    prediction = predict(size, fitted, usable, hardware)
    warnings = [*warnings_of(usable), *far_beyond(size, usable)]
    result = msgspec.structs.replace(measured, fits=costs.growths(usable), prediction=prediction, warnings=warnings)
    return _with_costs(result, usable, fitted)


def _with_costs(result: Scaling, usable: Sequence[Figures], fitted: costs.Calibration) -> Scaling:
    """Add the costs, and the errors of predictions of held-out cells."""
    held_out = costs.hold_out(usable)
    calibration: dict[str, dict[str, dict[str, float]]] = {}
    for (key, role), cost in fitted.items():
        calibration.setdefault(key, {})[role or "all"] = dict(zip(cost.terms, map(float, cost.each), strict=True))
    warnings = [*result.warnings, *([costs.verdict(held_out)] if costs.is_far_off(held_out) else [])]
    return msgspec.structs.replace(result, calibration=calibration, held_out=held_out, warnings=warnings)


def _show(result: Scaling, console: Console) -> None:
    """Print the tables of the page; for a prediction, only it and the errors of its costs."""
    errors = view.held_out(result.held_out)
    if result.prediction is not None:
        show(console, [*errors, *view.predicted(result.prediction)])
    else:
        base = view.base_cells(result.cells)
        measured = [*view.rounds(base), *view.uses(base), *view.setup(base), *view.dropouts(result.cells)]
        show(console, [*measured, *view.growth(result.fits), *errors])
    for text in result.warnings:
        say(console, "warning", text)


def _plot(result: Scaling, plot: Path, console: Console) -> None:
    from dca_proto.report.charts import picture  # slow to import

    cell = result.cells[0]
    where = EMULATED if cell.backend == EMULATED else f"over {cell.backend}"
    processes = f"{cell.processes} process{'es' * (cell.processes != 1)}"
    title = f"A round with encryption and exact noise ({where}, {processes})"
    if draw(console, plot, lambda place: picture(view.page(result).charts, place, title, result.warnings)):
        say(console, "picture", str(plot))
