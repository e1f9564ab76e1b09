"""Style as a test: sizes, layers, banned calls, and files that nothing imports."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

from sources import source, sources

ROOT = Path(__file__).parents[1]
PACKAGES = ("dca_proto", "emulator", "inference")
FUNCTION_LINES_MAX, FILE_LINES_MAX, TEST_LINES_MAX = 60, 450, 500
STDLIB = set(sys.stdlib_module_names)
DEVICE = {"numpy", "nacl", "msgspec", "structlog"}
BASE = {"numpy", "msgspec", "dca_proto.aggregate", "dca_proto.errors", "dca_proto.quorum", "dca_proto.wording"}
CRYPTO = BASE | {"nacl", "dca_proto.crypto"}
STATISTICS = BASE | {"dca_proto.crypto.fixedpoint", "dca_proto.statistics"}
PRIVACY = CRYPTO | STATISTICS | {"dca_proto.privacy"}
PROTOCOL = PRIVACY | {"dca_proto.plausibility", "dca_proto.protocol"}
RUNTIME = PROTOCOL | {"structlog", "dca_proto.results", "dca_proto.engine", "dca_proto.runtime"}
"""The packages of `dca_proto`, from the bottom to the top: each may import those before it, and no other."""
FIGURES = {
    "dca_proto.errors",
    "dca_proto.plausibility",
    "dca_proto.wording",
    "dca_proto.drawing",
    "dca_proto.protocol.wire.kinds",
    *(f"dca_proto.privacy.{name}" for name in ("accounting", "cost", "rounding")),
}
JOBS = {f"dca_proto.jobs.{name}" for name in ("forecast", "job")}
NOT_ON_A_DEVICE = (
    "typer",
    "rich",
    "joblib",
    "scipy",
    "sklearn",
    "matplotlib",
    "iotcore",
    "mqtt5",
    "socks",
    "mpmath",
    "prometheus_client",
    "starlette",
    "uvicorn",
    "dp_accounting",
    "numpyro",
    "psycopg",
)
RESULTS = BASE | {"dca_proto.results", "dca_proto.statistics", "dca_proto.protocol", "dca_proto.privacy.mechanism"}
VIEW = {"msgspec", "dca_proto.report", "dca_proto.results", "dca_proto.errors", "dca_proto.privacy.rounding",
        "dca_proto.drawing",
        "dca_proto.runtime.files", "dca_proto.wording"}  # fmt: skip
COUNTING = "dca_proto.statistics.counting"  # its words about missing values
NUMPYRO = {"numpy", "scipy", "sklearn", "matplotlib", "jax", "numpyro", "dca_proto.aggregate", COUNTING, *FIGURES,
           "inference"}  # fmt: skip

# Which modules may import what, by their longest prefix here. The standard library is open to all.
LAYERS = {
    "dca_proto": RUNTIME | {"dca_proto"},
    "dca_proto.aggregate": {"numpy", "dca_proto.protocol.wire.kinds", "dca_proto.quorum"},
    "dca_proto.errors": {"dca_proto.quorum"},
    "dca_proto.plausibility": STATISTICS | {"dca_proto.privacy"},
    "dca_proto.wording": {"msgspec"},
    "dca_proto.drawing": {"matplotlib", "dca_proto.wording"},
    "dca_proto.crypto": CRYPTO,
    "dca_proto.statistics": STATISTICS,
    "dca_proto.statistics.statement": STATISTICS | {"dca_proto.crypto.bounded"},
    "dca_proto.statistics.categories": STATISTICS | {"dca_proto.crypto.labels", "dca_proto.crypto.sealing"},
    "dca_proto.statistics.model_gradient": STATISTICS | {"jax"},
    "dca_proto.privacy": PRIVACY,
    "dca_proto.privacy.composition": PRIVACY | {"dp_accounting"},
    "dca_proto.protocol": PROTOCOL,
    "dca_proto.testing": PROTOCOL,
    "dca_proto.runtime": RUNTIME,
    "dca_proto.runtime.metrics": RUNTIME | {"dca_proto", "prometheus_client"},
    "dca_proto.runtime.embedded": RUNTIME | {"iotcore"},
    "dca_proto.runtime.packets5": RUNTIME | {"mqtt5"},
    "dca_proto.runtime.sources.postgres": RUNTIME | {"psycopg"},
    "dca_proto.runtime.aiomqtt_connection": RUNTIME | {"aiomqtt", "paho", "socks"},
    "dca_proto.cli.invite": DEVICE | {"dca_proto", "typer", "segno"},
    "dca_proto.deploy": RUNTIME | {"dca_proto.deploy"},
    "dca_proto.deploy.tls": {"cryptography"},
    "dca_proto.jobs": PROTOCOL | {"dca_proto.jobs", "dca_proto.results", "dca_proto.runtime.locks"},
    "dca_proto.jobs.sync": RUNTIME | {"dca_proto.jobs"},
    "dca_proto.results": RESULTS,
    "dca_proto.report": VIEW,
    "dca_proto.report.page": VIEW | {"jinja2", "markupsafe"},
    "dca_proto.report.charts": VIEW | {"matplotlib"},
    "dca_proto.report.learned": VIEW | {"inference"},
    "dca_proto.report.paper": VIEW | {"inference"},
    "dca_proto.report.run": VIEW | {"inference"},
    "dca_proto.dashboard": VIEW | {"dca_proto.dashboard", "jinja2", "markupsafe"},
    "dca_proto.dashboard.server": VIEW | {"dca_proto.dashboard", "dca_proto.runtime.listen", "starlette", "uvicorn",
                                          "structlog"},
    "dca_proto.cli": DEVICE | {"dca_proto", "typer", "rich", "emulator", "inference"},
    "dca_proto.cli.account": DEVICE | {"dca_proto", "typer", "rich", "numpy"},
    "inference": {"numpy", "scipy", "sklearn", "matplotlib", "pooch", "arviz", "jax", "dca_proto.aggregate", COUNTING,
                  *FIGURES, "inference"},
    "inference.bounds": {"numpy", "dca_proto.errors", "dca_proto.runtime.csv_text", "dca_proto.runtime.files",
                         "dca_proto.statistics.categories", "dca_proto.wording", "inference"},
    "inference.problem": {"numpy", "dca_proto.statistics.categories", "inference"},
    "inference.rounds": {"numpy", "dca_proto.aggregate", "dca_proto.statistics.categories", *FIGURES, "inference"},
    "inference.datasets": {"numpy", "sklearn", "pooch", "dca_proto.statistics.categories", *FIGURES, "inference"},
    "inference.datasets.csv_file": {"numpy", "dca_proto.errors", "dca_proto.runtime.csv_text", "dca_proto.statistics",
                                    "inference"},
    "inference.saved": {"numpy", "msgspec", "dca_proto.errors", "dca_proto.runtime.files", "inference"},
    "inference.mcmc": NUMPYRO,
    "inference.models": NUMPYRO,
    "inference.models.categories": NUMPYRO | {"dca_proto.statistics"},  # what a row sends at θ
    "inference.models.classifiers": {"numpy", "sklearn", "dca_proto.aggregate", "inference"},
    "inference.models.conjugate": {
        "numpy", "scipy", "dca_proto.aggregate", "dca_proto.statistics", "dca_proto.wording", "inference",
    },
    "inference.models.glm": NUMPYRO | {"dca_proto.statistics.gradient"},  # the curves that a row sends
    "inference.models.quantiles": {
        "numpy", "scipy", "dca_proto.aggregate", "dca_proto.statistics", "dca_proto.protocol.wire.kinds",
        "dca_proto.wording", "inference",
    },
    "inference.models.score_regression": NUMPYRO | {"dca_proto.statistics"},  # what a round asked
    "inference.models.survival": NUMPYRO | {"dca_proto.statistics"},  # their public codes
    "inference.models.synthetic": {
        "numpy", "scipy", "msgspec", "sklearn", "dca_proto.aggregate", "dca_proto.statistics",
        "dca_proto.protocol.wire.kinds", "dca_proto.runtime.files", "dca_proto.wording", "inference",
    },
    "inference.models.synthetic.pgm": {"numpy", "jax", "mbi", "inference"},
    "inference.models.table": {"numpy", "scipy", "msgspec", "dca_proto.aggregate", "dca_proto.statistics",
                               "dca_proto.protocol.wire.kinds", "dca_proto.wording", "inference"},
    "emulator": {"numpy", "msgspec", "emulator", "inference", "dca_proto.aggregate", *PROTOCOL, *JOBS,
                 "dca_proto.engine", "dca_proto.statistics", "dca_proto.results", "dca_proto.testing"},
}  # fmt: skip
LAYERS["emulator.swarm"] = {*DEVICE, *RUNTIME, "dca_proto.engine", "dca_proto.jobs", "dca_proto.results", "emulator",
                            "inference"}  # fmt: skip
"""The live swarm runs real actors over real connections."""
LAYERS["dca_proto.engine"] = {"dca_proto.errors", "dca_proto.engine"}
LAYERS["dca_proto.engine.local"] = {"joblib", "dca_proto.engine"}
LAYERS["dca_proto.engine.cluster"] = {"ray", "grpc", "dca_proto.errors", "dca_proto.wording", "dca_proto.engine"}
LAYERS["emulator.fuzz"] = PROTOCOL | {"dca_proto.runtime", "emulator.fuzz"}
LAYERS["emulator.sim"] = {
    "numpy",
    "msgspec",
    "emulator.sim",
    *PROTOCOL,
    "dca_proto.testing",
    "dca_proto.runtime.parts",
    "dca_proto.engine.local",
}  # pure: filters and the split into packets
AUDIT = {"numpy", "msgspec", "scipy", "emulator", *JOBS, *PROTOCOL, "dca_proto.engine", "dca_proto.results",
         "dca_proto.statistics", "dca_proto.testing"}  # fmt: skip
TRIALS = (AUDIT - {"scipy"}) | {"dca_proto.runtime.files"}
PAGE = VIEW | {f"emulator.{name}" for name in ("report", "trials", "coalition", "scaling")}
"""Pages show the records that the commands of each kind write."""
SCALING = AUDIT | {"dca_proto.runtime.files"}
LAYERS |= {
    "emulator.coalition": AUDIT,
    "emulator.trials": TRIALS,
    "emulator.trials.world": TRIALS | {"dca_proto.runtime.parts"},
    "emulator.derivations": {"nacl"},  # a checker does not use the code under test
    "emulator.pairs": TRIALS | {"nacl"},
    "emulator.scaling": SCALING,
    "emulator.scaling.measure": SCALING | {"nacl"},
    "emulator.report": PAGE,
    "emulator.report.audit": PAGE | {"numpy"},
}

ENTRY_POINTS = {
    "inference.estimators",
    "dca_proto.testing",
    "dca_proto.statistic_check",
    "dca_proto.protocol.play",
    "dca_proto.jobs.sync",
}
"""For users of the library."""
BANNED_IN_CORE = {
    "time", "random", "secrets", "asyncio", "socket", "threading", "sqlite3", "logging", "os", "pathlib", "subprocess",
}  # fmt: skip


@cache
def files() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def all_files() -> list[Path]:
    own = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    return files() + sorted(own)


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> set[str]:
    return {name_of(path) for path in files()}


def tree_of(path: Path) -> ast.Module:
    tree = source(path).nodes[0]
    assert isinstance(tree, ast.Module)
    return tree


@cache
def statements(path: Path) -> list[ast.stmt]:
    """All statements of a file, also those within others; no expression has one."""
    found: list[ast.stmt] = []
    waiting: list[ast.stmt] = list(tree_of(path).body)
    while waiting:
        node = waiting.pop()
        found.append(node)
        for part in (node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            waiting += [one for name in ("body", "orelse", "finalbody") for one in getattr(part, name, ())]
    return found


def show(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def imports_of(path: Path) -> frozenset[str]:
    """The modules that a file imports, wherever in it, with names that are modules of ours spelled out."""
    return frozenset(_imports_of(path))


def _imports_of(path: Path, left_out: Collection[ast.stmt] = ()) -> Iterator[str]:
    for node in statements(path):
        if node in left_out:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{show(path)}: absolute imports only"
            module = node.module or ""
            full = [f"{module}.{alias.name}" for alias in node.names]
            yield from (name if name in modules() else module for name in full)


def allows(allowed: set[str], module: str) -> bool:
    return any(module == prefix or module.startswith(prefix + ".") for prefix in allowed)


def test_sizes() -> None:
    """Functions of at most 60 lines, documentation aside; files of at most 450, of tests and scripts 500."""
    limits = dict.fromkeys(all_files(), TEST_LINES_MAX) | dict.fromkeys(files(), FILE_LINES_MAX)
    assert not [show(path) for path, limit in limits.items() if len(path.read_text().splitlines()) > limit]
    assert not [f"{show(path)} {name}" for path in all_files() for name in long_functions(path)]


def long_functions(path: Path) -> Iterator[str]:
    """The names of the functions above the limit."""
    for node in statements(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body[0]
            if (node.end_lineno or 0) - first.lineno + 1 > FUNCTION_LINES_MAX:
                yield node.name


def test_a_file_says_what_it_is_and_leaves_nothing_to_do() -> None:
    assert not [show(path) for path in files() if not ast.get_docstring(tree_of(path))]
    assert not [show(path) for path in files() if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", path.read_text())]


def test_imports_point_one_way() -> None:
    for path in files():
        name = name_of(path)
        layer = max((prefix for prefix in LAYERS if allows({prefix}, name)), key=len)
        foreign = {module for module in imports_of(path) if module.split(".")[0] not in STDLIB | {"__future__"}}
        beyond = sorted(module for module in foreign if not allows(LAYERS[layer], module))
        assert not beyond, f"{show(path)} imports {beyond}, beyond LAYERS[{layer!r}]; if it may, add LAYERS[{name!r}]"


STOPPERS = {"it", "asked", "held", "said", "came", "beside"}
"""Words that are no names: a reader stops at them to look up what they are."""


def test_parameters_have_plain_names() -> None:
    for path in files():
        for node in source(path).nodes:
            if isinstance(node, ast.arguments):
                listed = (*node.posonlyargs, *node.args, *node.kwonlyargs, node.vararg, node.kwarg)
                found = {one.arg for one in listed if one is not None}
                assert not found & STOPPERS, (show(path), sorted(found))


def test_records_that_share_fields_have_a_purpose_each() -> None:
    """Records that share six fields, and three quarters of the smaller, stand under one concept in docs/code.md."""
    page = (ROOT / "docs" / "code.md").read_text(encoding="utf-8").partition("## Records that share fields")[2]
    rows = re.findall(r"(?m)^\|([^|]*)\|([^|]*)\|", page.partition("\n## ")[0])
    concept, concepts = "", dict[str, set[str]]()
    for first, records in rows:
        concept = first.strip() or concept
        for name in re.findall(r"`(\w+)`", records):
            concepts.setdefault(name, set()).add(concept)
    own = {(show(path), node.name): node for path in files() for node in source(path).nodes
           if isinstance(node, ast.ClassDef)}  # fmt: skip
    bases = {node.name: {ast.unparse(base).partition("[")[0] for base in node.bases} for node in own.values()}
    fields = {key: _fields_of(node) for key, node in own.items() if len(_fields_of(node)) >= SHARED_MIN}
    assert len(fields) > 100
    found = []
    for (first, mine), (second, others) in itertools.combinations(fields.items(), 2):
        shared = mine & others
        if len(shared) < SHARED_MIN or 4 * len(shared) < 3 * min(len(mine), len(others)):
            continue
        names = first[1], second[1]
        derived = any(a in _above(b, bases) for a, b in (names, names[::-1]))
        if not derived and not concepts.get(names[0], set()) & concepts.get(names[1], set()):
            found.append((first, second, sorted(shared)))
    assert not found, "merge these, or give each a purpose in docs/code.md"


SHARED_MIN = 6

ONE_CONCEPT = {
    "Declined": "the fact, and the line of a ledger that shows it",
    "Histogram": "a statistic has the name of what it releases",
    "RandomisedResponse": "a mechanism, and what it costs",
    "Statement": "the emulator derives it anew, from DESIGN",
    "Table": "a statistic has the name of what it releases",
    "UnaryEncoding": "a mechanism, and what it costs",
}
"""The names that two classes have, each with the reason."""


def test_a_name_has_one_meaning() -> None:
    """No two classes of `dca_proto` and `emulator` have the same name; each job of `inference` has its `Settings`."""
    places: dict[str, list[str]] = {}
    for path in files():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and name_of(path).split(".")[0] != "inference":
                places.setdefault(node.name, []).append(show(path))
    twice = {name: found for name, found in places.items() if len(found) > 1 and not name.startswith("_")}
    assert twice.keys() == ONE_CONCEPT.keys(), {name: twice.get(name) for name in twice.keys() ^ ONE_CONCEPT.keys()}


def _fields_of(node: ast.ClassDef) -> set[str]:
    """The fields that a record declares itself."""
    lines = [
        one for one in node.body if isinstance(one, ast.AnnAssign) and "ClassVar" not in ast.unparse(one.annotation)
    ]
    return {one.target.id for one in lines if isinstance(one.target, ast.Name)}


def _above(name: str, bases: dict[str, set[str]]) -> set[str]:
    """The names of all classes that a class derives from."""
    own = bases.get(name, set())
    return own.union(*(_above(base, bases) for base in own - {name}))


PURE = ("protocol", "privacy", "crypto", "statistics")


def test_the_core_has_no_io_no_clock_and_no_hidden_randomness() -> None:
    core = [path for path in files() if path.parts[len(ROOT.parts) + 1] in PURE]
    assert len(core) > 50
    for path in core:
        assert not {module for module in imports_of(path) if module.split(".")[0] in BANNED_IN_CORE}, show(path)
        for node in source(path).nodes:
            at = show(path), getattr(node, "lineno", 0)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("open", "print", "input", "exec", "eval", "__import__"), at
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("urandom", "token_bytes", "now", "utcnow", "today", "default_rng"), at
                assert not (node.attr == "random" and ast.unparse(node.value) in ("np", "numpy")), at
                assert not ast.unparse(node).endswith("utils.random"), ("PyNaCl's own randomness", at)


def test_phases_are_compared_in_the_actors_tables_only() -> None:
    """Everybody asks a round's table (`takes`, `step`) or an actor (`knows`): what affects a transition stands there.

    A trial's judges are apart: they compare stored phases with what the protocol allows."""
    table, judges = (
        "dca_proto/protocol/actor.py",
        ("emulator/trials/checkers", "emulator/trials/losses.py", "emulator/trials/world.py"),
    )
    paths = [path for path in files() if not path.relative_to(ROOT).as_posix().startswith((table, *judges))]
    assert len(paths) > 200
    for path in paths:
        for node in source(path).nodes:
            if isinstance(node, ast.Compare):
                sides = [ast.unparse(side).partition("(")[0] for side in (node.left, *node.comparators)]
                phases = [side for side in sides if side.endswith((".phase", "phase_at")) and "fault." not in side]
                assert not phases, (show(path), node.lineno)


def test_virtual_time_has_no_real_one() -> None:
    """No event loop, clock, socket or thread in the simulator; processes in step are `team`'s affair."""
    banned = {"asyncio", "time", "threading", "socket", "secrets", "os"}
    simulator = [path for path in files() if "sim" in path.parts and path.stem != "team"]
    assert len(simulator) > 5
    for path in simulator:
        assert not {module for module in imports_of(path) if module.split(".")[0] in banned}, show(path)


def test_noise_in_tests_has_a_seed() -> None:
    """An interval of 95 % misses its truth in one of twenty runs, unless the noise is the same in each."""
    calls = [(name, node) for name, nodes in sources("tests") for node in nodes if isinstance(node, ast.Call)]
    free = [
        f"{name}:{node.lineno}"
        for name, node in calls
        if ast.unparse(node.func) == "IdealSwarm"
        and not {"random", "mechanism", None} & {one.arg for one in node.keywords}
    ]
    assert free == []


def test_no_file_that_nothing_imports() -> None:
    """Entry points aside: those of pyproject.toml, `python -m`, what is found lazily by its name, and scripts' own."""
    importers = [*files(), *(ROOT / "scripts").rglob("*.py")]
    used = {module for path in importers for module in imports_of(path)}
    texts = [(ROOT / "pyproject.toml").read_text(), *(path.read_text() for path in files())]
    used |= {name for text in texts for name in re.findall(r'"((?:dca_proto|emulator|inference)[\w.]*)[:"]', text)}
    own = {name_of(path) for path in files() if path.name not in ("__init__.py", "__main__.py")}
    assert sorted(own - used - ENTRY_POINTS) == []


def test_no_module_needs_itself() -> None:
    """Nor by way of others, of any package, also where a function imports late; imports for types alone are no need."""
    needs = {name_of(path): needed_by(path) for path in files()}
    left = dict(needs)
    while ready := [name for name, others in left.items() if not others & left.keys()]:
        for name in ready:
            del left[name]
    assert sorted(left) == [], "these import each other in a circle, or stand between circles"


def needed_by(path: Path) -> set[str]:
    """The modules of ours that a file needs to run."""
    for_types = {
        node
        for block in statements(path)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
    }
    return {module for module in _imports_of(path, for_types) if module in modules()} - {name_of(path)}


def test_tests_mirror_the_packages() -> None:
    """Each folder of tests is one of its package, no helper stands among tests, and no test module imports another."""
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    folders = {path.parent.relative_to(ROOT / "tests") for path in tests if path.name.startswith("test_")}
    mirrored = {folder for folder in folders if folder.parts and folder.parts[0] in PACKAGES}
    assert {folder.parts[0] for folder in mirrored} == set(PACKAGES)
    assert [str(folder) for folder in mirrored if not (ROOT / folder).is_dir()] == []
    assert [show(path) for path in tests if path.name.startswith("test_") == ("helpers" in path.parts)] == []
    assert [show(path) for path in tests if any(one.startswith("test_") for one in imports_of(path))] == []


def test_a_device_needs_nothing_that_a_device_has_not() -> None:
    """One actor starts where the command line's, the inference's and the embedded broker's packages are missing."""
    probe = f"import sys; sys.modules.update(dict.fromkeys({NOT_ON_A_DEVICE!r})); import dca_proto.runtime.device"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


def test_the_diagrams_of_the_design_are_those_of_the_tables() -> None:
    checked = subprocess.run([sys.executable, "scripts/make_diagrams.py", "--check"], cwd=ROOT, check=False)
    assert checked.returncode == 0, "run scripts/make_diagrams.py"


EMULATING = {"audit", "emulate", "fleet", "scaling", "swarm"}
"""Commands that emulate or attack: they need the emulator. A device or a federation needs none of them."""


def test_no_production_command_imports_the_emulator() -> None:
    """Nor by way of others, also where a function imports late."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["dca.commands"]
    assert table.keys() > EMULATING
    needs = {name_of(path): needed_by(path) for path in files()}
    reached = {place.partition(":")[0] for name, place in table.items() if name not in EMULATING} | {"dca_proto"}
    waiting = [*reached]
    while waiting:
        new = needs[waiting.pop()] - reached
        reached |= new
        waiting += new
    assert len(reached) > 100
    assert sorted(name for name in reached if name.split(".")[0] == "emulator") == []


def test_nothing_imports_the_command_line() -> None:
    upward = [
        f"{show(path)} imports {name}"
        for path in files()
        if not name_of(path).startswith("dca_proto.cli")
        for name in imports_of(path)
        if name.startswith("dca_proto.cli")
    ]
    assert not upward
