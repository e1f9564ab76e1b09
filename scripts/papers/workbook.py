"""Reads the first sheet of an .xlsx workbook as rows of text, by the standard library alone.

A workbook is a zip archive of XML parts (ECMA-376). A cell shown as 5.11 may hold 5.1100000000000003; this module
returns the shortest text of that double, 5.11.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"


def rows(workbook: IO[bytes] | Path) -> Iterator[list[str]]:
    """Yield each row of the first sheet; a missing cell is an empty text.

    Raises:
        ValueError: the file is no readable workbook.
    """
    try:
        with zipfile.ZipFile(workbook) as parts:
            texts = []
            if "xl/sharedStrings.xml" in parts.namelist():  # phonetic hints beside a text are not part of it
                for item in ElementTree.fromstring(parts.read("xl/sharedStrings.xml")):
                    runs = *item.findall(f"{MAIN}t"), *item.findall(f"{MAIN}r/{MAIN}t")
                    texts.append("".join(run.text or "" for run in runs))
            first = next(ElementTree.fromstring(parts.read("xl/workbook.xml")).iter(f"{MAIN}sheet"), None)
            wanted = first.attrib[f"{RELATION}id"] if first is not None else ""
            relations = ElementTree.fromstring(parts.read("xl/_rels/workbook.xml.rels"))
            target = {relation.attrib["Id"]: relation.attrib["Target"] for relation in relations}[wanted]
            with parts.open(target.lstrip("/") if target.startswith("/") else f"xl/{target}") as sheet:
                for _, element in ElementTree.iterparse(sheet):
                    if element.tag == f"{MAIN}row":
                        yield _cells(element, texts)
                        element.clear()
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, IndexError, ElementTree.ParseError) as error:
        raise ValueError(f"not a workbook that can be read ({error})") from error


def as_csv(workbook: IO[bytes] | Path) -> bytes:
    """Return the first sheet as comma-separated lines."""
    return "".join(",".join(row) + "\n" for row in rows(workbook)).encode()


def _cells(row: ElementTree.Element, texts: list[str]) -> list[str]:
    cells: list[str] = []
    for cell in row.iter(f"{MAIN}c"):
        column = 0  # 1 for A, 27 for AA
        for letter in cell.attrib.get("r", "").rstrip("0123456789"):
            column = 26 * column + ord(letter) - ord("A") + 1
        cells.extend([""] * (column - 1 - len(cells)))
        cells.append(_value(cell, texts))
    return cells


def _value(cell: ElementTree.Element, texts: list[str]) -> str:
    kind, value = cell.attrib.get("t", "n"), cell.findtext(f"{MAIN}v") or ""
    if kind == "inlineStr":
        return "".join(part.text or "" for part in cell.iter(f"{MAIN}t"))
    if kind == "s":
        return texts[int(value)]
    return repr(float(value)).removesuffix(".0") if kind == "n" and value else value
