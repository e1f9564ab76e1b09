"""A stand-in for an object of the product, which differs from it in some attributes only."""

from __future__ import annotations

from typing import Any


class Replaced:
    """Another object, with some attributes replaced."""

    def __init__(self, honest: object, **own: object) -> None:
        vars(self).update(own, _honest=honest)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_honest"], name)
