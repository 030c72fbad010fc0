"""Random settings of requests to a server, right and wrong ones: other types, ranges, Unicode, sizes."""

from __future__ import annotations

import random
import typing
from typing import Any

from eadp.methods import BeforeMethod, get_method_class, list_methods
from eadp.methods.settings import Range, setting_types

NUMBERS = [0, 1, -1, 2, 3, 7, 64, 10**6, 2**31, 2**63, 10**400, 0.0, -0.0, 0.25, 0.5, 1.0, 1.5, 3.0, -0.5, 1e-300, 1e12]
NUMBERS += [1e200, 1e308]
NOT_FINITE = [float("nan"), float("inf"), float("-inf")]
TEXTS = [
    "",
    " ",
    "eadp",
    "none",
    "all",
    "many",
    "0",
    "1e3",
    "true",
    "null",
    "é",
    "日本語",
    "🦊" * 3,
    "\x00",
    "\ud800",
    "‮abc",
]
TEXTS += ["x" * 5_000, "word " * 20_000, "%s%n{0}", "'; DROP TABLE", "../../etc/passwd", "-1", "NaN", "\n\n"]
OTHERS: list[Any] = [None, True, False, [], {}, [1, 2], ["a"], {"keep": 3}, [[[]]], [None], {"": {"": {}}}]
PLACEMENT = {
    "positions": ["keep", "renumber", "none", 3, None],
    "newlines": ["none", "all", "kept rows", "chosen", "", None],
    "question": [*TEXTS, 3, None, ["a"]],
    "keep": [1, 2, 5, 0.1, 0.5, 0.99, 64, *NUMBERS],
}


def served_methods() -> list[str]:
    """The names of the methods that prune before the language model."""
    return [name for name in list_methods() if issubclass(get_method_class(name), BeforeMethod)]


def random_settings(generator: random.Random, finite: bool = False) -> dict[str, Any]:
    """Return the settings of a request. About a third of them are right.

    Args:
        generator: The source of randomness.
        finite: Whether to leave out what JSON cannot say.
    """
    name = generator.choice(served_methods())
    settings: dict[str, Any] = {"method": name} if generator.random() < 0.8 else {}
    if generator.random() < 0.05:
        settings["method"] = generator.choice([*TEXTS, *OTHERS, "fastv", "downsample"])
    for other, values in PLACEMENT.items():
        if generator.random() < 0.25:
            settings[other] = generator.choice(values)
    types = setting_types(get_method_class(name))
    for setting in generator.sample(sorted(types), k=min(len(types), generator.randrange(4))):
        right = generator.random() < 0.6
        settings[setting] = _right_value(generator, types[setting]) if right else _any_value(generator, finite)
    if generator.random() < 0.1:
        settings[generator.choice([*TEXTS, "colour", "cache_mib", "guide"])] = _any_value(generator, finite)
    return settings


def _any_value(generator: random.Random, finite: bool) -> Any:
    return generator.choice([*NUMBERS, *([] if finite else NOT_FINITE), *TEXTS, *OTHERS])


def _right_value(generator: random.Random, hint: Any) -> Any:
    """Return a value that an annotation allows, at its bounds or between them."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return generator.choice(arguments)
    if origin is typing.Annotated:
        bounds = next((each for each in arguments if isinstance(each, Range)), None)
        if bounds is not None and arguments[0] in (int, float):
            low = 0 if bounds.low is None else bounds.low
            high = 100 if bounds.high is None else bounds.high
            drawn = generator.choice([low, high, generator.uniform(low, high), generator.uniform(low, low + 3)])
            return int(min(drawn, 1 << 40)) if arguments[0] is int else float(drawn)
        return _right_value(generator, arguments[0])
    if arguments and type(None) in arguments:
        return _right_value(generator, generator.choice(arguments))
    if hint is bool:
        return generator.random() < 0.5
    if hint is int:
        return generator.randrange(0, 30)
    if hint is float:
        return generator.random() * 2
    return None
