"""`dca scaling`: measure how rounds scale, compare with the paper, and predict what is too large to measure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from dca_proto.cli.options import Json, Plot
from dca_proto.cli.output import STDOUT, require_json_target, require_plot_target, say, whole_file, write_json
from dca_proto.errors import UsageError
from dca_proto.runtime.broker import find_mosquitto
from emulator import engine as engines
from emulator.scaling import costs, view
from emulator.scaling.cell import EMULATED, MOSQUITTO, Size, Sweep
from emulator.scaling.held import Figures
from emulator.scaling.measure import measure_apart
from emulator.scaling.predict import Machine, parse_question, predict, require_computes
from emulator.scaling.record import Record, Scaling, read_scaling

_SWEEP = {"clients": "100,1000", "dimension": "10,100", "computes": "10"}
_CALIBRATION = {"clients": "100,250,600", "dimension": "10,1000,4000", "computes": "3,10"}
"""About a minute on one core."""
_REPEATS, _REPEATS_CALIBRATION = 5, 3

OUTPUT = Scaling
EXAMPLES = """Examples:

  dca scaling --clients 100,1000 --dimension 10,100,1000 --json scaling.json --plot scaling.png

  dca scaling --clients 100,1000,10000 --dimension 10,100,1000 --resume sweep.json --json scaling.json

  dca scaling --clients 500 --dimension 10 --tolerate 0,0.1,0.3 --drop 0,0.05,0.2

  dca scaling --predict "clients=1e7,dimension=1e4,computes=10" --calibration scaling.json
"""


def scaling(
    clients: Annotated[str | None, typer.Option(help="N, a list such as 100,1000,10000.")] = None,
    dimension: Annotated[str | None, typer.Option(help="d, how many numbers are summed; a list.")] = None,
    computes: Annotated[str | None, typer.Option(help="M, the number of Compute nodes; a list.")] = None,
    tolerate: Annotated[str, typer.Option(help="T, shares of N (below 1) or numbers of clients; a list.")] = "0.1",
    drop: Annotated[str, typer.Option(help="How likely each client is away in a round; a list.")] = "0",
    backend: Annotated[str, typer.Option(help="emulated, or mosquitto for a live fleet.")] = EMULATED,
    repeats: Annotated[int | None, typer.Option(help="Measured rounds of each cell; by default 5.")] = None,
    processes: Annotated[
        int | None, typer.Option(help="That share the actors; by default one a core, while each has some.")
    ] = None,
    engine: Annotated[str, typer.Option(help=engines.HELP)] = engines.LOCAL,
    resume: Annotated[Path | None, typer.Option(help="Keep finished cells in this file, and go on from it.")] = None,
    predict_size: Annotated[
        str | None, typer.Option("--predict", help='Predict a round: "clients=1e7,dimension=1e4,computes=10".')
    ] = None,
    calibration_file: Annotated[
        Path | None, typer.Option("--calibration", help="Predict from the JSON of an earlier sweep.")
    ] = None,
    round_seconds: Annotated[float, typer.Option(help="How long a predicted round may take.")] = 3600.0,
    machine_cores: Annotated[float, typer.Option(help="Of each machine that is counted.")] = 16,
    machine_memory_gb: Annotated[float, typer.Option(help="Of each machine.")] = 64,
    machine_network_gbit: Annotated[float, typer.Option(help="Per second, of each machine.")] = 10,
    broker_messages_s: Annotated[float, typer.Option(help="In and out, of a broker on one machine.")] = 100_000,
    load: Annotated[float, typer.Option(help="The part of a machine that is used.")] = 0.5,
    plot: Plot = None,
    json_to: Json = None,
) -> int:
    """Measure how rounds grow with N, d and M, beside the paper's Table 1; or predict larger ones.

    Encryption, signatures and exact noise are on. Each cell has processes of its own, without Python's garbage
    collector while a round is measured. Sessions are set up before; a first round, in which pairs agree on keys, is not
    timed as a round. wall_s is from the trainer's command to the result. A process that holds many clients verifies an
    announcement's signature once.

    `dca schema scaling` says what the fields of the JSON object are. What does not apply is null.
    """
    require_json_target(json_to)
    if resume is not None and str(resume) == STDOUT:
        raise UsageError("--resume -: expected the name of a file")
    require_plot_target(plot)
    given = {"clients": clients, "dimension": dimension, "computes": computes}
    question = None if predict_size is None else parse_question(predict_size)
    hardware = Machine(
        cores=machine_cores,
        memory_gb=machine_memory_gb,
        network_gbit=machine_network_gbit,
        broker_messages_s=broker_messages_s,
        load=load,
        round_s=round_seconds,
    )
    hardware.check()
    if question is None and hardware != Machine():
        raise UsageError("--round-seconds, --machine-..., --broker-messages-s and --load go with --predict")
    sweep = _sweep(given, tolerate, drop, backend, repeats, processes, question is not None)
    console = Console(stderr=json_to == STDOUT)
    if calibration_file is not None:
        _check_calibration(question, given, calibration_file, resume)
        result = read_scaling(calibration_file)
    else:
        if question is not None:
            require_computes(question, sweep.computes)
            costs.require_cells(len([cell for cell in sweep.cells() if cell.is_plain]))
        result = _measured(sweep, resume, engine, console)
    shown = _fitted(result, console) if question is None else _predicted(question, result, hardware, console)
    write_json(msgspec.to_builtins(shown), json_to)
    if plot is not None:
        _plot(shown, plot, console)
    return 0


# --- what is asked ---------------------------------------------------------------------------------------------------


def _check_calibration(
    question: Size | None, given: Mapping[str, str | None], calibration_file: Path, resume: Path | None
) -> None:
    if question is None:
        raise UsageError("--calibration goes with --predict; to measure, leave it out")
    others = [f"--{name}" for name, text in given.items() if text is not None]
    if others or resume is not None:
        excluded = ", ".join(others) or "--resume"
        raise UsageError(f"--calibration and {excluded} exclude each other: a calibration is measured already")


def _sweep(
    given: Mapping[str, str | None],
    tolerate: str,
    drop: str,
    backend: str,
    repeats: int | None,
    processes: int | None,
    is_prediction: bool,
) -> Sweep:
    usual = _CALIBRATION if is_prediction else _SWEEP
    sizes = {name: _whole_numbers(f"--{name}", usual[name] if text is None else text) for name, text in given.items()}
    share = max(1, min(engines.cores(), *sizes["computes"], *sizes["clients"]))  # then all have something to do
    sweep = Sweep(
        **sizes,
        tolerated=_numbers("--tolerate", tolerate),
        drop_rates=_numbers("--drop", drop),
        backend=backend,
        repeats=(_REPEATS_CALIBRATION if is_prediction else _REPEATS) if repeats is None else repeats,
        processes=share if processes is None else processes,
    )
    sweep.cells()
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


def _whole_numbers(option: str, text: str) -> list[int]:
    values = _numbers(option, text)
    if any(value != int(value) for value in values):
        raise UsageError(f"{option} {text!r}: expected whole numbers")
    return [int(value) for value in values]


# --- what is done ----------------------------------------------------------------------------------------------------


def _measured(sweep: Sweep, resume: Path | None, engine: str, console: Console) -> Scaling:
    """Measure what is not measured yet."""
    cells = sweep.cells()
    record = Record(resume, msgspec.to_builtins(sweep))
    todo = record.missing(cells)
    kept = f"; {len(cells) - len(todo)} are in {resume}" if len(todo) < len(cells) else ""
    expected = view.duration(sum(cell.estimate_s for cell in todo))
    size = f"{_counted(len(cells), 'cell')}, {_counted(sweep.repeats, 'round')} each"
    say(console, "sweep", f"{size}, backend {sweep.backend}, {_counted(sweep.processes, 'process')}{kept}")
    say(console, "time", f"roughly {expected}; encryption and exact noise are on")
    try:
        with engines.open_engine(engine) as chosen, view.Progressing(console, todo) as watcher:
            figures = record.run(cells, lambda cell: measure_apart(cell, chosen), watcher)
    except KeyboardInterrupt:
        kept = "not kept: name a --resume FILE" if resume is None else f"in {resume}: the same command goes on"
        say(console, "interrupted", f"{len(record)} of {len(cells)} cells are finished, and {kept}")
        raise
    return Scaling(cells=figures, **record.sweep)


def _fitted(result: Scaling, console: Console) -> Scaling:
    """Tables, exponents and costs of a sweep."""
    cells, base = result.cells, base_cells(result.cells)
    console.print(view.cells_table(base), view.uses_table(base))
    if len(base) < len(cells) or any(one.drop_rate for one in cells):
        console.print(view.dropouts_table(cells))
    fits = costs.growths(base)
    doubts = [*view.busy_lines(base), *view.slower_lines(base)]
    for line in (*doubts, *view.growth_lines(fits), *view.memory_lines(base)):
        say(console, *line)
    result = msgspec.structs.replace(result, fits=fits, warnings=[": ".join(line) for line in doubts])
    try:
        usable = costs.usable(base)
    except UsageError as error:
        say(console, "prediction", f"none: {error}")
        return msgspec.structs.replace(result, warnings=[*result.warnings, f"prediction: none: {error}"])
    return _calibrated(result, usable, costs.fit_all(usable), console)


def _predicted(question: Size, result: Scaling, hardware: Machine, console: Console) -> Scaling:
    """With what a larger round needs, and what that rests on."""
    usable = costs.usable(result.cells)
    fitted = costs.fit_all(usable)
    prediction = predict(question, fitted, usable, hardware)
    doubts = [*view.busy_lines(usable)]
    result = msgspec.structs.replace(
        result, fits=costs.growths(usable), prediction=prediction, warnings=[": ".join(line) for line in doubts]
    )
    result = _calibrated(result, usable, fitted, console)
    for line in doubts:
        say(console, *line)
    console.print(view.prediction_table(prediction))
    say(console, "broker", view.broker_line(prediction))
    if prediction.agreement_s is not None and prediction.sessions_s is not None:
        sessions, agreed = f"{prediction.sessions_s:,.2g}", f"{prediction.agreement_s:,.2g}"
        say(console, "epoch", f"once in it, roughly {sessions} core s for sessions, and {agreed} to agree on keys")
    for text in prediction.assumptions:
        say(console, "assumed", text)
    return result


def _calibrated(result: Scaling, usable: Sequence[Figures], fitted: costs.Calibration, console: Console) -> Scaling:
    """With the costs, and their error on cells that were not fitted."""
    held_out = costs.hold_out(usable)
    console.print(view.held_out_table(held_out))
    line = view.held_out_line(held_out)
    say(console, "held out", line)
    told: dict[str, dict[str, dict[str, float]]] = {}
    for (key, role), cost in fitted.items():
        told.setdefault(key, {})[role or "all"] = dict(zip(cost.terms, map(float, cost.each), strict=True))
    warnings = [*result.warnings, *([line] if view.is_far_off(held_out) else [])]
    return msgspec.structs.replace(result, calibration=told, held_out=held_out, warnings=warnings)


def base_cells(cells: Sequence[Figures]) -> list[Figures]:
    """Of each N, d and M the cell with the lowest drop rate and, of these, the lowest T."""
    base: dict[tuple[int, int, int], Figures] = {}
    for one in sorted(cells, key=lambda one: (one.drop_rate, one.tolerated)):
        base.setdefault((one.clients, one.dimension, one.computes), one)
    return list(base.values())


def _plot(result: Scaling, plot: Path, console: Console) -> None:
    from emulator.report.charts import picture  # heavy, and needed here only
    from emulator.report.scaling import page

    one = result.cells[0]
    where = EMULATED if one.backend == EMULATED else f"over {one.backend}"
    title = f"A round with encryption and exact noise ({where}, {_counted(one.processes, 'process')})"
    with whole_file(plot) as place:
        picture(page(result).charts, place, title)
    say(console, "picture", str(plot))


def _counted(number: int, noun: str) -> str:
    plural = "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{plural * (number != 1)}"
