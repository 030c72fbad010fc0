"""The methods, one file each. A new file in this folder that defines a named `Method` is a new method."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from eadp.methods.base import REGISTRY, Method

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

NAMES: tuple[str, ...] = tuple(sorted(REGISTRY))


def make(name: str, **settings: Any) -> Method:
    """The method called `name` with these settings: `make("eadp", keep=64)`."""
    if name not in REGISTRY:
        raise ValueError(f"unknown method {name!r}; known: {', '.join(NAMES)}")
    return REGISTRY[name](**settings)


__all__ = ["NAMES", "Method", "make"]
