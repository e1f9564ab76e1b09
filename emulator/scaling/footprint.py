"""The bytes that an object holds in memory, with everything that it alone refers to."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import msgspec
import numpy as np

_SHARED = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
_WHOLE = (bytes, str, int, float, np.ndarray)


def footprint(root: object, shared: Iterable[object] = ()) -> int:
    """Bytes of `root` and of all that can be reached from it, each object once.

    Args:
        shared: objects that belong to others and are not counted, with what is reached from them alone.
    """
    counted = {id(one) for one in shared}
    waiting, total = [root], 0
    while waiting:
        one = waiting.pop()
        if id(one) in counted or isinstance(one, _SHARED):
            continue
        counted.add(id(one))
        total += sys.getsizeof(one)  # of an array: with its data, where it owns them
        if not isinstance(one, _WHOLE):
            waiting.extend(_parts(one))
    return total


def _parts(one: Any) -> Iterator[object]:
    """What an object refers to directly."""
    if isinstance(one, dict):
        yield from (*one.keys(), *one.values())
    elif isinstance(one, list | tuple | set | frozenset):
        yield from one
    names = one.__struct_fields__ if isinstance(one, msgspec.Struct) else ()
    slots = (kind.__dict__.get("__slots__", ()) for kind in type(one).__mro__)
    within = [name for some in slots for name in ((some,) if isinstance(some, str) else some)]
    yield from (getattr(one, name) for name in (*names, *within) if not name.startswith("__") and hasattr(one, name))
    if hasattr(one, "__dict__"):
        yield one.__dict__
