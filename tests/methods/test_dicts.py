"""Methods become dicts that JSON can hold, and are built from them; unknown settings are told in one sentence."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import pytest

import eadp
from eadp import Method
from eadp.methods import get_method_class

CHANGED: dict[str, dict[str, Any]] = {
    "cdpruner": {"keep": 0.25, "scope": "image", "theta": 0.5},
    "dart": {
        **{"keep": 12, "layers": (4, 9), "budget": "layer_mean", "visual_pivots": 2, "text_pivots": 0},
        **{"exact": True, "turn": "norm"},
    },
    "divprune": {"keep": 7, "scope": "block"},
    "downsample": {"keep": 7},
    "eadp": {
        **{"keep": 9, "coverage": 0.9, "time": 2, "time_decay": 0.1, "per_frame": 1, "mu": 0.25, "q": 0.2, "tau": 0.02},
        **{"gamma": 0.01 + 1e-6, "lift": 1e-6},
        **{"dispersion": "variance", "aggregation": "gated", "theta": 0.5, "top_words": 3, "words": "slots"},
        **{"word_count": "floor", "scope": "pool", "normalised_over": "block", "smoothing": 5, "sigma": 1.5},
        **{"smoothing_grid": "guessed", "beta": 1.0, "allocation": "uniform", "rounding": "released"},
        **{"similarity": "aligned", "selection": "facility_location", "deepstack": False, "backend": "torch"},
        **{"matrix_limit": 1024},
    },
    "evs": {"keep": 0.25, "exact": True},
    "fastvid": {
        **{"keep": 9, "exact": True, "segments": 2, "threshold": 0.8, "context": 0.5, "step": 3, "beta": 0.5},
        "layer": -2,
    },
    "flashvid": {
        **{"keep": 9, "exact": True, "alpha": 0.5, "threshold": 0.7, "expansion": 1.5, "segments": 4},
        **{"segment_threshold": 0.8, "relevance": False, "layer": -2},
    },
    "floc": {"keep": 9},
    "holitom": {
        **{"keep": 9, "exact": True, "threshold": 0.65, "beta": 0.5, "longest": 8, "order": "position"},
        "layer": -2,
    },
    "vcast": {"keep": 0.25, "exact": True, "temperature": 0.5, "at_least": 2},
    "vidcom2": {"keep": 0.25, "exact": True, "form": "vllm"},
    "fastv": {"keep": 0.5, "layers": (3, 5), "budget": "layer_mean", "fold": True},
    "hiprune": {"keep": 9, "alpha": 0.3, "object_layer": 4, "deep_layer": -3, "buffers": "grid", "exact": True},
    "mmtok": {
        **{"keep": 9, "alpha": 0.3, "text_temperature": 0.1, "vision_temperature": 0.3, "words": "question"},
        **{"exact": True},
    },
    "none": {},
    "pool": {"keep": 0.1},
    "prumerge": {"keep": 9, "layer": -2, "even": 1, "neighbours": 8, "among": "unkept", "per_head": True},
    "pyramiddrop": {"keep": 9, "layers": (5, 10), "shares": (0.4, 0.2), "budget": "layer_mean"},
    "random": {"keep": 9, "seed": 4},
    "scope": {"keep": 9, "alpha": 2.0, "combine": "add", "layer": -3, "exact": True},
    "sparsevlm": {"layers": (2, 6, 15), "budget": "layer_mean", "table": (9, 5, 3), "recycle": 0.5},
    "topk": {"keep": 9, "mu": 0.25, "q": 0.2, "tau": 0.02, "gamma": 0.03, "smoothing": 5},
    "trim": {"keep": 9, "exact": True},
    "uniform": {"keep": 1.0, "whole_frames": True},
    "visionzip": {"keep": 9, "layer": -3, "contextual": 4},
    "vispruner": {"keep": 9, "ratio": 0.25, "layer": -3},
}
UNCHANGED = {"eadp": {"selection"}, "sparsevlm": {"keep"}, "none": {"keep"}}
"""Settings that the others do not let change."""


def test_the_table_changes_every_setting_of_every_method() -> None:
    assert set(CHANGED) == set(eadp.list_methods())
    for name, changed in CHANGED.items():
        defaults = get_method_class(name).default_settings()
        same = {setting for setting, default in defaults.items() if changed.get(setting, default) == default}
        assert same == UNCHANGED.get(name, set()), name


@pytest.mark.parametrize("name", CHANGED)
def test_a_method_survives_json(name: str) -> None:
    for settings in (CHANGED[name], {"keep": 16} if name == "eadp" else {}):
        method = eadp.get_method(name, **settings)
        data = json.loads(json.dumps(method.to_dict()))
        assert data == method.to_dict()
        assert Method.from_dict(data) == method
        assert type(method).from_dict(data) == method
        assert hash(Method.from_dict(data)) == hash(method)


def test_a_dict_has_the_name_and_every_setting() -> None:
    expected = {"method": "fastv", "keep": 2, "layers": [2], "budget": "after_prune", "fold": False}
    assert eadp.FastV(keep=2).to_dict() == expected
    assert set(eadp.EADP(keep=2).to_dict()) == {"method", *(each.name for each in fields(eadp.EADP))}


def test_settings_that_are_left_out_have_their_defaults() -> None:
    assert Method.from_dict({"method": "eadp", "keep": 64}) == eadp.EADP(keep=64)
    assert eadp.EADP.from_dict({"keep": 64}) == eadp.EADP(keep=64)
    assert eadp.get_method("pyramiddrop", layers=[8, 16, 24]) == eadp.PyramidDrop()


def test_presets() -> None:
    published = {"method": "eadp", "preset": "published", "keep": 64}
    assert Method.from_dict(published, family="qwen2_5_vl") == eadp.EADP.published(64, "qwen2_5_vl")
    assert Method.from_dict({**published, "beta": 3.0}, family="llava").beta == 3.0
    assert Method.from_dict({**published, "preset": None}) == eadp.EADP(keep=64)
    with pytest.raises(ValueError, match="'published' depends on the model: give family="):
        Method.from_dict(published)
    with pytest.raises(ValueError, match="trim has no preset 'published'"):
        Method.from_dict({**published, "method": "trim"}, family="llava")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"keep": 64}, 'a method is given by its name, as in {"method": "eadp", "keep": 64}'),
        ({"method": 3}, "a method is given by its name"),
        ({"method": "edap", "keep": 64}, "unknown method 'edap'; known: cdpruner"),
        ({"method": "eadp", "keep": 0}, "keep must be at least 1"),
    ],
)
def test_dicts_of_no_method(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Method.from_dict(data)


def test_a_class_builds_only_its_own() -> None:
    with pytest.raises(ValueError, match=r"trim is not a subclass of EADP; Method\.from_dict builds any method"):
        eadp.EADP.from_dict({"method": "trim"})
    with pytest.raises(ValueError, match="fastv is not a subclass of BeforeMethod"):
        eadp.BeforeMethod.from_dict({"method": "fastv", "keep": 2})


SENTENCE = r"^random has no setting sead \(did you mean seed\?\); it has keep, (preset, )?seed$"


def test_unknown_settings_are_told_alike_everywhere() -> None:
    for build in (
        lambda: eadp.get_method("random", keep=2, sead=1),
        lambda: Method.from_dict({"method": "random", "sead": 1}),
        lambda: eadp.Random(keep=2).with_settings(sead=1),
        lambda: eadp.Random.check_settings(["sead"]),
    ):
        with pytest.raises(ValueError, match=SENTENCE):
            build()
    with pytest.raises(ValueError, match=r"^random has no setting bogus, colour; it has keep, seed$"):
        eadp.Random.check_settings(["seed", "colour", "bogus"])


def test_settings_can_be_changed() -> None:
    method = eadp.Random(keep=2)
    assert method.with_settings(seed=4) == eadp.Random(keep=2, seed=4)
    assert method.settings == {"keep": 2, "seed": 0}
    with pytest.raises(TypeError, match="keep must be a count"):
        method.with_settings(keep="two")


def test_a_setting_that_json_cannot_hold_is_named() -> None:
    @dataclass(frozen=True)
    class Logging(eadp.Random):
        name: ClassVar[str] = "logging"
        log: set[int] = field(default_factory=set)

    with pytest.raises(TypeError, match="logging's setting log is a set, which JSON cannot hold"):
        Logging(keep=2).to_dict()


def test_an_exact_count() -> None:
    assert eadp.TRIM(keep=4).with_exact_count() == eadp.TRIM(keep=4, exact=True)
    assert eadp.EADP.published(4, "llava").with_exact_count().rounding == "exact"
    assert eadp.Uniform(keep=4).with_exact_count() == eadp.Uniform(keep=4)


def test_no_pruning_takes_no_budget() -> None:
    with pytest.raises(ValueError, match="none keeps every token: leave out keep=4"):
        eadp.get_method("none", keep=4)
    assert eadp.NoPruning().count_sent(576, newlines=24) == 600
