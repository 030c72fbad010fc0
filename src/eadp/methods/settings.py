"""The types and ranges of settings: a method declares them with its fields, and every value is checked against them.

A field's annotation is all that a method writes:

    mu: Annotated[float, Range(0, 1)] = 0.5
    scope: Literal["block", "image"] = "block"
    layers: tuple[int, ...] = (8, 16, 24)
"""

from __future__ import annotations

import math
from collections.abc import Collection
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Range:
    """The values that a number may have: low ≤ value ≤ high, or low < value and value < high where a limit is open.

    Attributes:
        low: The lower limit; None if there is none.
        high: The upper limit; None if there is none.
        open_low: Whether the lower limit itself is left out.
        open_high: Whether the upper limit itself is left out.
    """

    low: float | None = None
    high: float | None = None
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = self.low is None or (value > self.low if self.open_low else value >= self.low)
        below = self.high is None or (value < self.high if self.open_high else value <= self.high)
        return above and below

    def __str__(self) -> str:
        if self.low is not None and self.high is not None:
            low, high = (f"{each:g}" if isinstance(each, float) else str(each) for each in (self.low, self.high))
            return f"lie in {'(' if self.open_low else '['}{low}, {high}{')' if self.open_high else ']'}"
        if self.low is not None:
            return f"be {'greater than' if self.open_low else 'at least'} {self.low}"
        return f"be {'less than' if self.open_high else 'at most'} {self.high}"


@dataclass(frozen=True)
class OneOf:
    """The names that a text may have, for lists of names that exist elsewhere; otherwise write a `Literal`."""

    names: Collection[str]


def check_value(name: str, value: Any, hint: Any) -> Any:
    """Check a setting against its annotation.

    Args:
        name: The setting, for the error.
        value: Its value.
        hint: The annotation: bool, int, float, str, None, a Literal, a tuple of these, a union of these, or one of
            these annotated with a `Range` or `OneOf`. Values of other types are not checked.

    Returns:
        The value. Numbers of other libraries, such as NumPy's, become Python's.

    Raises:
        TypeError: If the value has another type.
        ValueError: If it is not finite, out of range, or an unknown name.
    """
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    value = _plain_number(value)
    for option in options:
        if _has_type(value, option):
            return _check_range(name, value, option)
    kinds = [_describe(option) for option in options if not (option is int and float in options)]
    raise TypeError(f"{name} must be {' or '.join(kinds)}, got {value!r}")


def check_settings_of(method: object) -> None:
    """Check all settings of a method, a frozen dataclass, and store numbers of other libraries as Python's."""
    # mypy looks up __hash__ in the class instead of its type.
    for name, hint in setting_types(type(method)).items():  # type: ignore[arg-type]
        value = getattr(method, name)
        checked = check_value(name, value, hint)
        if checked is not value:
            object.__setattr__(method, name, checked)


@cache
def setting_types(method: type) -> dict[str, Any]:
    """Return the annotation of every setting of a method's class by name; `Any` where it cannot be evaluated.

    That is where a class is defined in a function and its annotations name local types.
    """
    hints: dict[str, Any] = {}
    for base in method.__mro__:
        with suppress(NameError):
            hints = get_type_hints(base, include_extras=True)
            break
    return {each.name: hints.get(each.name, Any) for each in fields(method) if each.init}


def json_schema(method: type) -> dict[str, Any]:
    """Return a JSON schema of a method's settings, as an object without further properties."""
    properties = {}
    for each in fields(method):
        if each.init:
            properties[each.name] = _schema(setting_types(method)[each.name])
            if each.default is not MISSING:
                default = each.default
                properties[each.name]["default"] = list(default) if isinstance(default, tuple) else default
    return {"type": "object", "properties": properties, "additionalProperties": False}


def describe(hint: Any) -> str:
    """Describe the values that an annotation allows: "a number in [0, 1]", "block, image or pool"."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(describe(each) for each in arguments)
    if origin is Literal:
        return ", ".join(map(str, arguments))
    if origin is Annotated:
        (constraint,) = arguments[1:]
        if isinstance(constraint, OneOf):
            return ", ".join(constraint.names)
        of = "" if constraint.low is not None and constraint.high is not None else "of "
        return f"{_describe(arguments[0])} {of}{str(constraint).removeprefix('lie ').removeprefix('be ')}"
    return _describe(hint)


def _plain_number(value: Any) -> Any:
    if isinstance(value, bool | int | float) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _has_type(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _has_type(value, arguments[0])
    if origin is Literal:
        return any(type(value) is type(each) for each in arguments)
    if origin is tuple:
        return isinstance(value, tuple | list)
    if hint in (None, NoneType):
        return value is None
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (bool, str):
        return isinstance(value, hint)
    return True


def _check_range(name: str, value: Any, hint: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value}")
    if origin is Literal and value not in arguments:
        _raise_unknown(name, value, arguments)
    if origin is tuple:
        kinds = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(kinds) != len(value):
            raise ValueError(f"{name} must have {len(kinds)} values, got {value!r}")
        return tuple(check_value(name, each, kind) for each, kind in zip(value, kinds, strict=True))
    if origin is Annotated:
        value = _check_range(name, value, arguments[0])
        for constraint in arguments[1:]:
            if isinstance(constraint, OneOf) and value not in constraint.names:
                _raise_unknown(name, value, constraint.names)
            if isinstance(constraint, Range) and value not in constraint:
                raise ValueError(f"{name} must {constraint}, got {value}")
    return value


def _raise_unknown(name: str, value: Any, known: Collection[Any]) -> None:
    raise ValueError(f"unknown {name} {value!r}; known: {', '.join(map(str, known))}")


def _describe(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _describe(arguments[0])
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin is tuple:
        return "a list of " + {int: "whole numbers", float: "numbers"}.get(_without_range(arguments[0]), "values")
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", NoneType: "none"}
    return names.get(hint, str(hint))


def _without_range(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _schema(hint: Any) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return {"anyOf": [_schema(each) for each in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return {"type": "array", "items": _schema(arguments[0])}
        size = {"minItems": len(arguments), "maxItems": len(arguments)}
        return {"type": "array", "prefixItems": [_schema(each) for each in arguments], **size}
    if origin is Annotated:
        schema = _schema(arguments[0])
        for constraint in arguments[1:]:
            if isinstance(constraint, OneOf):
                schema["enum"] = list(constraint.names)
            if isinstance(constraint, Range):
                limits = {
                    "exclusiveMinimum" if constraint.open_low else "minimum": constraint.low,
                    "exclusiveMaximum" if constraint.open_high else "maximum": constraint.high,
                }
                schema |= {name: limit for name, limit in limits.items() if limit is not None}
        return schema
    names = {int: "integer", float: "number", bool: "boolean", str: "string", NoneType: "null"}
    return {"type": names[hint]} if hint in names else {}
