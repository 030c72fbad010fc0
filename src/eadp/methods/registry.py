"""Methods by name: those of this package, those that a program registers, and those of other packages."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib.metadata import entry_points
from typing import Any, TypeVar

from eadp.methods.base import METHOD, PRESET, Method

ENTRY_POINTS = "eadp.methods"
"""The group of entry points under which other packages offer their methods."""

_AnyMethod = TypeVar("_AnyMethod", bound=type[Method])

_methods: dict[str, type[Method]] = {}
_loaded_entry_points = False


def register_method(cls: _AnyMethod) -> _AnyMethod:
    """Register a method under its `name`, so that `get_method`, `attach` and the command line find it.

        @eadp.register_method
        @dataclass(frozen=True)
        class First(eadp.BeforeMethod):
            name: ClassVar[str] = "first"
            citation: ClassVar[str] = "mine"

            def select(self, tokens, text=None): ...

    Another package offers its methods as entry points of the group `eadp.methods`: each names a class, or a module
    that registers some. They are loaded when methods are first listed or looked up.

    Args:
        cls: A concrete subclass of `BeforeMethod` or `InsideMethod`.

    Returns:
        The class itself. Running the same definition again, as notebooks do, replaces the former one.

    Raises:
        TypeError: If this is no concrete subclass of `Method`, lacks its name or citation, or is not a dataclass.
        ValueError: If another class has the same name.
    """
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise TypeError(f"a method is a subclass of BeforeMethod or InsideMethod, got {cls!r}")
    if inspect.isabstract(cls):
        raise TypeError(f"{_path(cls)} does not implement {', '.join(sorted(cls.__abstractmethods__))}")
    for attribute in ("name", "citation"):
        if not isinstance(getattr(cls, attribute, None), str):
            raise TypeError(f"{_path(cls)} needs a class variable {attribute}, a text")
    if missing := _annotated(cls) - {each.name for each in fields(cls)}:
        raise TypeError(
            f"{', '.join(sorted(missing))} of {_path(cls)} would be no setting: write @dataclass(frozen=True) between "
            "@register_method and the class"
        )
    former = _methods.get(cls.name)
    if former is not None and _path(former) != _path(cls):
        raise ValueError(
            f"two methods are called {cls.name!r}: {_path(former)} and {_path(cls)}; give one of them another name"
        )
    _methods[cls.name] = cls
    return cls


def list_methods() -> list[str]:
    """Return the names of all methods, sorted, those of other packages included."""
    _load_entry_points()
    return sorted(_methods)


def get_method_class(name: str) -> type[Method]:
    """Return the class of the method called `name`.

    Raises:
        ValueError: If there is no such method. The message lists those that there are.
    """
    _load_entry_points()
    if name not in _methods:
        raise ValueError(f"unknown method {name!r}; known: {', '.join(list_methods())}")
    return _methods[name]


def get_method(name: str, *, preset: str | None = None, family: str | None = None, **settings: Any) -> Method:
    """Build the method called `name`: `get_method("cdpruner", keep=64)`.

    Args:
        name: One of `list_methods()`.
        preset: A named set of settings, such as "published" of EADP.
        family: The `model_type` of the model that the preset is for, such as "llava" or "qwen2_5_vl".
        settings: The method's settings. They win over those of the preset.

    Raises:
        ValueError: If the method, a setting or the preset is unknown, or a value is out of range.
        TypeError: If a value has the wrong type.
    """
    return Method.from_dict({METHOD: name, PRESET: preset, **settings}, family=family)


@contextmanager
def restored_registry() -> Iterator[None]:
    """Forget all methods that are registered within the block when it ends; for tests."""
    global _loaded_entry_points
    former, loaded = dict(_methods), _loaded_entry_points
    try:
        yield
    finally:
        _methods.clear()
        _methods.update(former)
        _loaded_entry_points = loaded


def _load_entry_points() -> None:
    global _loaded_entry_points
    if _loaded_entry_points:
        return
    # First, because what is loaded may itself look methods up.
    _loaded_entry_points = True
    try:
        for entry in entry_points(group=ENTRY_POINTS):
            try:
                loaded = entry.load()
            except Exception as error:
                package = "another package" if entry.dist is None else entry.dist.name
                sentence = f"{package} offers the method {entry.value}, which cannot be loaded: {error}"
                raise RuntimeError(sentence) from error
            if not inspect.ismodule(loaded):
                register_method(loaded)
    except Exception:
        _loaded_entry_points = False
        raise


def _annotated(cls: type) -> set[str]:
    """Return the names that the class itself annotates as fields."""
    annotations = inspect.get_annotations(cls)
    return {name for name, kind in annotations.items() if not re.match(r"(typing\.)?ClassVar\b", str(kind))}


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
