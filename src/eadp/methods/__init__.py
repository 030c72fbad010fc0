"""The methods, one file each. A new file in this folder that defines a named `Method` is a new method."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from eadp.methods.base import REGISTRY, Method

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

NAMES: tuple[str, ...] = tuple(sorted(REGISTRY))


def make(name: str, *, preset: str | None = None, family: str | None = None, **settings: Any) -> Method:
    """The method called `name` with these settings: `make("eadp", keep=64)`.

    preset: a named set of settings, over which `settings` win: `make("eadp", preset="published", family="llava",
            keep=64)`. family: the `model_type` of the model that it is for.
    """
    if name not in REGISTRY:
        raise ValueError(f"unknown method {name!r}; known: {', '.join(NAMES)}")
    method = REGISTRY[name]
    if preset is None:
        return method(**settings)
    if family is None:
        raise ValueError(f"preset {preset!r} depends on the model: give family=, such as 'llava' or 'qwen2_5_vl'")
    return method(**{**method.preset(preset, family), **settings})


__all__ = ["NAMES", "Method", "make"]
