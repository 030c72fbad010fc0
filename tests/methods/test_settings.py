"""Every setting of every method is checked for its type, its range and finiteness."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from eadp.methods import EADP, Method, get_method_class, list_methods
from eadp.methods.settings import OneOf, Range, check_value, setting_types

JUNK: list[Any] = [None, True, -1, 0, 3, 1.5, 1e12, 1e200, math.nan, math.inf, "", "x", "\ud800", [], [1.5], ["x"], {}]


@pytest.mark.parametrize("method", list_methods())
def test_a_wrong_value_of_any_setting_is_a_type_or_value_error(method: str) -> None:
    found = get_method_class(method)
    base = {"method": method} | ({"keep": 8} if found.takes_budget else {})
    for name in setting_types(found):
        for value in JUNK:
            # Any other exception fails the test.
            with suppress(TypeError, ValueError):
                built = Method.from_dict(base | {name: value})
                assert Method.from_dict(json.loads(json.dumps(built.to_dict()))) == built


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"smoothing": 3.0}, TypeError, "smoothing must be a whole number, got 3.0"),
        ({"beta": 1e12}, ValueError, r"beta must lie in \[0, 1000\]"),
        ({"sigma": 1e200}, ValueError, r"sigma must lie in \(0, 1000\]"),
        ({"mu": math.nan}, ValueError, "mu must be a finite number"),
        ({"matrix_limit": None}, TypeError, "matrix_limit must be a whole number"),
        ({"deepstack": 1}, TypeError, "deepstack must be true or false"),
        ({"scope": "crop"}, ValueError, "unknown scope 'crop'; known: block, image, pool"),
        ({"backend": 3}, TypeError, "backend must be a text, got 3"),
    ],
)
def test_the_error_says_what_would_be_right(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        EADP(keep=8, **settings)


@pytest.mark.parametrize(("method", "name"), [("random", "seed"), ("visionzip", "layer")])
def test_a_fraction_is_no_whole_number(method: str, name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a whole number, got 1.5"):
        Method.from_dict({"method": method, "keep": 8, name: 1.5})


def test_numbers_of_numpy_become_pythons() -> None:
    method = EADP(keep=np.int64(32), mu=np.float32(0.5), smoothing=np.int32(5))
    assert method == EADP(keep=32, mu=0.5, smoothing=5)
    assert [type(value) for value in (method.keep, method.mu, method.smoothing)] == [int, float, int]
    assert json.loads(json.dumps(method.to_dict()))["keep"] == 32


@pytest.mark.parametrize(
    ("value", "hint", "result"),
    [
        ([1, 2], tuple[int, ...], (1, 2)),
        (None, Annotated[float, Range(0, 1)] | None, None),
        (1, Annotated[float, Range(0, 1)], 1),
        ("a", Annotated[str, OneOf(("a", "b"))], "a"),
        (2, Literal[1, 2], 2),
        ({"any": 1}, dict[str, int], {"any": 1}),
    ],
)
def test_right_values_pass(value: Any, hint: Any, result: Any) -> None:
    assert check_value("setting", value, hint) == result


@pytest.mark.parametrize(
    ("value", "hint", "message"),
    [
        ([1, 2], tuple[int, int, int], "setting must have 3 values"),
        ([1, "x"], tuple[int, ...], "setting must be a whole number, got 'x'"),
        (0, Annotated[int, Range(1)], "setting must be at least 1, got 0"),
        (0, Annotated[float, Range(0, open_low=True)], "setting must be greater than 0, got 0"),
        (2, Annotated[float, Range(high=1, open_high=True)], "setting must be less than 1, got 2"),
        (2, Annotated[float, Range(high=1)], "setting must be at most 1, got 2"),
        (True, int | None, "setting must be a whole number or none, got True"),
        ("c", Annotated[str, OneOf(("a", "b"))], "unknown setting 'c'; known: a, b"),
    ],
)
def test_wrong_values_do_not(value: Any, hint: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        check_value("setting", value, hint)


def test_the_schema_names_every_setting_with_its_range_and_default() -> None:
    schema = EADP.settings_schema()
    assert set(schema["properties"]) == set(setting_types(EADP))
    assert schema["properties"]["mu"] == {"type": "number", "minimum": 0, "maximum": 1, "default": 0.5}
    assert schema["properties"]["scope"] == {"enum": ["block", "image", "pool"], "default": "block"}
    for method in list_methods():
        json.dumps(get_method_class(method).settings_schema(), allow_nan=False)
