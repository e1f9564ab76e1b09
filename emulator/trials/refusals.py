"""Counts where the actors refuse something, so that a sweep shows which refusals no trial has reached.

A refusal is a place in the protocol's code where an actor rejects what a peer sent, declines or aborts a round, or lets
one fail: a call of a name in `REFUSING`. The places are found in the source. To note that one is executed, the
functions with refusals get a copy of their code that calls `note` there. All other code runs as it is.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pkgutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType

PACKAGES = ("dca_proto.crypto", "dca_proto.privacy.local", "dca_proto.protocol")
REFUSING = {
    "PeerError": "drops",
    "Refusal": "declines",
    "_abort": "aborts",
    "_reused": "reports reuse",
    "_fail": "fails",
    "RoundFailed": "fails",
    "RoundAborted": "fails",
}
"""The names whose calls refuse something, and what that does."""
_NOTE = "__refusal__"
_WITHIN = ("__wrapped__", "__func__", "fget", "func")
_executed: set[str] = set()


def note(site: str, refusing: object) -> object:
    """Note that a refusal is executed; return what refuses."""
    _executed.add(site)
    return refusing


@contextmanager
def noted() -> Iterator[set[str]]:
    """Collect the refusals that this process executes inside the `with` block."""
    _install()
    _executed.clear()
    yield _executed


@functools.cache
def sites() -> tuple[str, ...]:
    """Return all refusals: file, function, what it does, and the code or the reason."""
    return tuple(site for module in _modules() for site in _marked(module)[1])


def _modules() -> list[ModuleType]:
    packages = [importlib.import_module(name) for name in PACKAGES]
    found = [info.name for one in packages for info in pkgutil.walk_packages(one.__path__, f"{one.__name__}.")]
    return [*packages, *map(importlib.import_module, sorted(found))]


class _Marker(ast.NodeTransformer):
    """Wraps the called name of each refusal in a call of `note`."""

    def __init__(self, file: str) -> None:
        self.sites: list[str] = []
        self._file = file
        self._inside: list[str] = []
        self._known: Counter[str] = Counter()

    def _enter(self, node: ast.AST) -> ast.AST:
        self._inside.append(node.name)  # type: ignore[attr-defined]
        self.generic_visit(node)
        self._inside.pop()
        return node

    visit_FunctionDef = visit_ClassDef = _enter  # noqa: N815 - names that `ast` gives

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in REFUSING and self._inside:
            site = f"{self._file} {'.'.join(self._inside)}: {REFUSING[name]} {_reason(node)}".rstrip()
            self._known[site] += 1
            site += f" ({self._known[site]})" if self._known[site] > 1 else ""
            self.sites.append(site)
            wrapped = ast.Call(ast.Name(_NOTE, ast.Load()), [ast.Constant(site), node.func], [])
            node.func = ast.copy_location(wrapped, node.func)
        self.generic_visit(node)
        return node


def _reason(call: ast.Call) -> str:
    """Return the first text, or name of a text, among a call's arguments: its code or reason."""
    for argument in call.args:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            return argument.value
        if isinstance(argument, ast.IfExp):
            return ast.unparse(argument)
    return ""


def _marked(module: ModuleType) -> tuple[ast.Module, list[str]]:
    """Return a module's syntax tree with its refusals marked, and their names."""
    marker = _Marker(module.__name__.removeprefix("dca_proto.").replace(".", "/") + ".py")
    tree = marker.visit(ast.parse(inspect.getsource(module)))
    return ast.fix_missing_locations(tree), marker.sites


@functools.cache
def _install() -> None:
    """Give all functions with refusals their marked code, except those whose code is not that of the source."""
    for module in _modules():
        tree, found = _marked(module)
        if found and module.__file__ is not None:
            vars(module)[_NOTE] = note
            codes = [
                compile(source, module.__file__, "exec", dont_inherit=True)
                for source in (inspect.getsource(module), tree)
            ]
            marked = dict(zip(*map(_functions_in, codes), strict=True))
            for function in _defined_in(vars(module), module.__name__):
                function.__code__ = marked.get(function.__code__, function.__code__)


def _defined_in(names: Mapping[str, object], module: str) -> Iterator[FunctionType]:
    """Yield the functions and methods that a module or class defines, also those inside descriptors and caches."""
    for thing in list(names.values()):
        for part in (thing, *(getattr(thing, name, None) for name in _WITHIN)):
            if isinstance(part, FunctionType) and part.__module__ == module:
                yield part
        if isinstance(thing, type) and thing.__module__ == module:
            yield from _defined_in(vars(thing), module)


def _functions_in(code: CodeType) -> list[CodeType]:
    """Return the code of all functions in a module or class, in their order."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return [part for one in inner for part in (one, *_functions_in(one))]
