#!/usr/bin/env python
"""Writes the generated parts of documents: the tables and diagrams of DESIGN §9, sensitivities, and lists of jobs.

    scripts/make_diagrams.py                  writes them between their markers
    scripts/make_diagrams.py --check          compares only; exit code 1 if they differ

`tests/test_tidy.py` runs the comparison.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from inspect import getdoc
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from dca_proto.crypto.labels import TABLE
from dca_proto.privacy.budget import Budget
from dca_proto.protocol.actor import Table
from dca_proto.protocol.client import round as client_round
from dca_proto.protocol.compute import round as compute_round
from dca_proto.protocol.trainer import round as trainer_round
from dca_proto.protocol.wire import messages
from dca_proto.protocol.wire.kinds import Kind
from dca_proto.statistics.base import built_in
from inference.jobs import NAMES, find
from inference.jobs.base import Conditions, plan_words
from inference.jobs.examples import problem
from inference.problem import stream

ROOT = Path(__file__).parent.parent
CLIENTS, BUDGET = 5_000, Budget(2.0, 1e-5)  # of the plans


def diagram(title: str, table: Table) -> str:
    """Return a Mermaid state diagram; events that keep the phase get one line each."""
    moves, stays = defaultdict(list), defaultdict(list)
    for (phase, event), after in table.items():
        (stays[phase] if after == phase else moves[phase, after]).append(event)
    lines = [f"**{title}**", "", "```mermaid", "stateDiagram-v2"]
    lines += [f"    {phase} --> {after}: {', '.join(events)}" for (phase, after), events in moves.items()]
    lines += [f"    {phase} --> {phase}: {', '.join(events)}" for phase, events in stays.items()]
    return "\n".join([*lines, "```"])


def label_table() -> str:
    """Return the table of all domain labels."""
    rows = [
        f"| `{one.text.decode()}` | {one.how} | {one.inputs} | {one.gives} | {one.known_to} |" for one in TABLE.values()
    ]
    return "\n".join(["| label | how | of | gives | known to |", "| --- | --- | --- | --- | --- |", *rows])


def structs() -> tuple[type[msgspec.Struct], ...]:
    """Return all types that are encoded: frames and bodies by their tags, kinds of rounds, and the parts of others."""
    unions = (messages.Frame, messages.Body)
    tagged = [sorted(union.__args__, key=lambda one: one.__struct_config__.tag) for union in unions]
    return *tagged[0], *tagged[1], *Kind.__args__, messages.Certificate, messages.FileStamp, messages.Registrar


def encoding(kind: inspect.Type) -> str:
    """Return the encoding of a type, in words; of a struct, its name."""
    low, high = (getattr(kind, name, None) for name in ("min_length", "max_length"))
    size = f"{high}" if low == high else f"{low} to {high}" if low else f"at most {high}"
    match kind:
        case inspect.StructType():
            return f"`{kind.cls.__name__}`"
        case inspect.UnionType():
            return " or ".join(sorted(encoding(one) for one in kind.types))
        case inspect.DictType():
            return f"map from {encoding(kind.key_type)} to {encoding(kind.value_type)}"
        case inspect.TupleType():
            return f"[{', '.join(map(encoding, kind.item_types))}]"
        case inspect.VarTupleType() | inspect.ListType():
            return f"array of {f'{size} × ' if high else ''}({encoding(kind.item_type)})"
        case inspect.BytesType():
            return f"{size} bytes" if high else "bytes"
        case inspect.StrType():
            return f"text of {size} characters" if high else "text"
        case inspect.IntType():
            least, most = kind.ge, kind.le if kind.lt is None else kind.lt - 1
            if least is None or most is None:
                return "integer"
            power = (most + 1).bit_length() - 1
            end = f"2^{power} − 1" if most > 1000 and most + 1 == 1 << power else most
            return f"{least}" if least == most else f"{least} to {end}"
        case _:
            return type(kind).__name__.removesuffix("Type").lower()


def fields_of(struct: type[msgspec.Struct]) -> list[tuple[str, str]]:
    """Return the names and encodings of a type's fields, in their order on the wire."""
    found: Any = inspect.type_info(struct)
    return [(field.encode_name, encoding(field.type)) for field in found.fields]


def message_table() -> str:
    """Return the table of all encoded types."""
    rows = []
    for struct in structs():
        tag, said = struct.__struct_config__.tag, " ".join((getdoc(struct) or "").split())
        said, _, listed = said.partition(" Attributes: ")  # each is named as if in the text
        said = " ".join([said, *re.sub(r"(\w+): ", r"`\1` is ", listed).split()])
        fields = "; ".join(f"`{name}`: {of}" for name, of in fields_of(struct))
        rows.append(f"| `{struct.__name__}` | {'' if tag is None else tag} | {fields} | {said} |")
    return "\n".join(["| type | tag | fields, in order | meaning |", "| --- | --- | --- | --- |", *rows])


def diagrams() -> str:
    """Return all diagrams."""
    named = (("Client", client_round.TABLE), ("Compute node", compute_round.TABLE), ("Trainer", trainer_round.TABLE))
    return "\n\n".join(diagram(title, table) for title, table in named)


def job_table() -> str:
    """Return the list of jobs, with what each learns, and the addresses of their pages."""
    rows = [f"| [{name}]{' (default)' * (name == NAMES[0])} | {find(name).about} |" for name in NAMES]
    pages = [f"[{name}]: jobs/{name}.md" for name in NAMES if (ROOT / f"docs/jobs/{name}.md").exists()]
    return "\n".join(["| job | what it learns |", "| --- | --- |", *rows, "", *pages])


def job_pages() -> str:
    """Return the pages of jobs for the site's navigation, by their headings."""
    pages = [(name, ROOT / f"docs/jobs/{name}.md") for name in NAMES]
    heads = {name: page.read_text(encoding="utf-8").partition("\n")[0] for name, page in pages if page.exists()}
    return "\n".join(f"      - {head.removeprefix('# ')}: jobs/{name}.md" for name, head in heads.items())


def cost_table() -> str:
    """Return the list of jobs, with each one's plan on its first example."""
    rows = []
    for job in map(find, NAMES):
        schema = problem(job.examples[0].target, 1).schema
        known = Conditions(CLIENTS, 0, BUDGET.mu, stream(0, "auxiliary"), kind=job.kinds[0], epsilon=BUDGET.epsilon)
        words = plan_words(job.plan(schema, job.settings(), known)).replace(f" {schema.target}", " one column")
        rows.append(f"| `{job.name}` | {words} |")
    return "\n".join(["| job | rounds, and their shares of μ² by default |", "| --- | --- |", *rows])


def sensitivity_table() -> str:
    """Return the table of the statistics' sensitivities, with their proofs and tests."""
    head = ["| statistic | Δ₂ (grid units) | Δ₁ | proof, code | tests |", "| --- | --- | --- | --- | --- |"]
    rows = {}
    for kind in built_in().values():
        home = next(one for one in kind.__mro__ if "proofs" in vars(one)).__module__
        for proof in kind.proofs:
            file = f"`{'/'.join(home.split('.')[1:])}.py`"
            cells = (proof.of, proof.l2, proof.l1, proof.proof or file, proof.tests)
            rows[proof] = f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    return "\n".join([*head, *rows.values()])


GENERATED = {
    "dca_proto/DESIGN.md": {"messages": message_table, "labels": label_table, "diagrams": diagrams},
    "dca_proto/PRIVACY.md": {"sensitivities": sensitivity_table, "jobs": cost_table},
    "docs/learning.md": {"jobs": job_table},
    "mkdocs.yml": {"jobs": job_pages},
}
"""By file: what stands between the markers of each name."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    differ = False
    for file, parts in GENERATED.items():
        text = wanted = (ROOT / file).read_text(encoding="utf-8")
        for name, generated in parts.items():
            head, begin, rest = wanted.partition(f"<!-- {name} -->\n")
            end = re.search(rf"(?m)^.*<!-- /{name} -->$", rest)  # in YAML, it stands in a comment
            assert end is not None, f"{file} has markers of {name}"
            wanted = f"{head}{begin}{generated()}\n{rest[end.start() :]}"
        differ |= text != wanted
        if text != wanted and not options.check:
            (ROOT / file).write_text(wanted, encoding="utf-8")
    return int(differ and options.check)


if __name__ == "__main__":
    sys.exit(main())
