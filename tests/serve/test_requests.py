"""The parts of the vLLM plugin that do not need vLLM. `make test-vllm` runs the other tests."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import eadp
from eadp.cli import app
from eadp.models.layout import ImageLayout
from eadp.models.vision_call import EncodedImage, TowerRows
from eadp.serve import ARCHITECTURES, versions
from eadp.serve.command import build_command
from eadp.serve.features import EncodedFeatures, FeatureCache
from eadp.serve.request import Request, ServerSettings


def server(**settings: Any) -> ServerSettings:
    """The settings of a LLaVA server."""
    return ServerSettings.from_config(SimpleNamespace(eadp=settings), ("renumber",))


def test_a_request_survives_the_way_to_the_workers() -> None:
    request = Request(
        server(keep=64, beta=3.0).build_request({"question": " Wo ist die Tür? "}).method, "Wo ist die Tür?"
    )
    assert Request.from_tensor(request.to_tensor()) == request
    for request in (Request(eadp.NoPruning()), Request(eadp.NoPruning(), is_profile=True)):
        assert Request.from_tensor(request.to_tensor()) == request


def test_settings_of_a_request_override_those_of_the_server() -> None:
    ours = server(method="eadp", keep=64, beta=3.0)
    assert ours.build_request({"keep": 8}).method.keep == 8
    assert ours.build_request({"keep": 8}).method.beta == 3.0
    assert ours.build_request({"question": " Where? "}).question == "Where?"
    assert ours.build_request({"keep": 1.0}).method == eadp.NoPruning()
    assert ours.build_request({"keep": 1}).method.keep == 1


def test_a_request_may_turn_pruning_off() -> None:
    request = server(method="eadp", keep=64).build_request({"method": "none"})
    assert request.method == eadp.NoPruning()
    assert not request.prunes
    assert request.count_sent(576, newlines=24) == 600
    assert server(method="none").build_request(None) == request
    with pytest.raises(ValueError, match="none keeps every token: leave out keep=8"):
        server(method="none").build_request({"keep": 8})


def test_a_method_inside_the_language_model_cannot_be_served() -> None:
    with pytest.raises(ValueError, match="fastv cannot be served"):
        server(keep=64).build_request({"method": "fastv"})


def test_another_method_takes_only_the_budget_from_the_server() -> None:
    method = server(method="eadp", keep=64, beta=3.0).build_request({"method": "divprune"}).method
    assert (method.name, method.keep) == ("divprune", 64)


def test_an_image_with_no_more_tokens_than_the_budget_is_not_pruned() -> None:
    request = server(keep=64).build_request(None)
    assert [request.count_sent(total) for total in (63, 64, 65, 576)] == [63, 64, 64, 64]
    assert server(keep=0.25).build_request(None).count_sent(576) == 144


def test_the_token_count_includes_newlines() -> None:
    counts = {}
    for method in ("eadp", "divprune"):
        for newlines in ("none", "all", None):
            request = server(method=method, keep=64, newlines=newlines).build_request(None)
            counts[method, newlines] = request.count_sent(2880, newlines=48)
    assert counts["eadp", None] == counts["eadp", "none"] == counts["divprune", None] == 64
    assert counts["eadp", "all"] == counts["divprune", "all"] == 64 + 48
    assert server(keep=4000).build_request(None).count_sent(2880, newlines=48) == 2880 + 48
    assert server(method="divprune", keep=0.5).build_request(None).count_sent(100, newlines=10) == 55


def test_newlines_of_kept_rows_are_all_served() -> None:
    """Which rows of a clip keep a token is not known in advance, so HoliTom keeps all newlines here."""
    vision = SimpleNamespace(model_type="siglip_vision_model", num_hidden_layers=26, num_attention_heads=16)
    config = SimpleNamespace(
        eadp={"method": "holitom", "keep": 0.25},
        model_type="llava_onevision",
        vision_config=vision,
        vision_feature_layer=-1,
    )
    settings = ServerSettings.from_config(config, ("renumber",))
    assert settings.build_request(None).count_sent(100, newlines=10) == 25 + 10
    assert settings.build_request({"newlines": "none"}).count_sent(100, newlines=10) == 25
    with pytest.raises(ValueError, match='"kept rows" cannot be served'):
        settings.build_request({"newlines": "kept rows"})


def test_divprune_selects_no_newlines_of_clips() -> None:
    """DivPrune prunes each frame separately, unless scope="image" makes all frames one pool."""
    clip = {"patches": 100, "newlines": 10, "has_layout": False}
    assert server(method="divprune", keep=0.5).build_request(None).count_sent(**clip) == 50
    assert server(method="divprune", keep=0.5, scope="image").build_request(None).count_sent(**clip) == 55
    assert server(method="divprune", keep=0.5, newlines="all").build_request(None).count_sent(**clip) == 60


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ({"smoothing": 3.0}, "smoothing must be a whole number"),
        ({"method": "random", "seed": 1.5}, "seed must be a whole number"),
        ({"beta": 1e12}, r"beta must lie in \[0, 1000\]"),
        ({"sigma": 1e200}, r"sigma must lie in \(0, 1000\]"),
        ({"matrix_limit": None}, "matrix_limit must be a whole number"),
        ({"question": "Where is \ud800?"}, "question must be valid Unicode text"),
    ],
)
def test_a_request_with_a_value_that_would_fail_later_is_rejected(own: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        server(keep=64).build_request(own)


@pytest.mark.parametrize("preset", ["paper", "published"])
@pytest.mark.parametrize("family", ["llava", "llava_next", "llava_onevision", "qwen2_5_vl", "qwen3_vl"])
def test_presets_are_served_with_exact_counts(family: str, preset: str) -> None:
    config = SimpleNamespace(eadp={"keep": 64, "preset": preset}, model_type=family)
    request = ServerSettings.from_config(config, ("renumber", "keep")).build_request(None)
    wanted = eadp.EADP.published(64, family) if preset == "published" else eadp.EADP.paper(64)
    assert request.method == replace(wanted, rounding="exact")
    assert request.positions == "renumber"
    assert Request.from_tensor(request.to_tensor()) == request


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "EADP needs keep="),
        ({"keep": 0}, "at least 1"),
        ({"keep": 64, "method": "visionzip"}, "visionzip cannot be served with this model; these can: cdpruner"),
        ({"keep": 64, "newlines": "kept rows"}, "must know how many tokens stay"),
        ({"keep": 64, "preset": "notes"}, "known: paper, published"),
        ({"keep": 64, "positions": "keep"}, 'only "renumber"'),
        ({"keep": 64, "cache_mib": -1}, r"cache_mib must lie in \[0, 1048576\]"),
        ({"keep": 64, "guide": "none"}, "reads the question"),
        ({"keep": 64, "llava_video": True}, "llava_video=true is for LLaVA-Video checkpoints"),
        ({"keep": 64, "colour": 1}, r"eadp has no setting colour; it has .*tau"),
    ],
)
def test_a_server_with_wrong_settings_does_not_start(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        server(**settings)


def test_overrides_without_settings_raise_an_error_with_an_example() -> None:
    with pytest.raises(ValueError, match=r"--hf-overrides must say how to prune"):
        ServerSettings.from_config(SimpleNamespace(), ("keep",))


def test_methods_that_need_no_attention_are_available() -> None:
    assert {"eadp", "cdpruner", "divprune", "random", "uniform", "topk"} <= set(server(keep=64).available_methods)


@pytest.mark.parametrize(("layer", "read"), [(-2, 23), (22, 22), (-1, 24), ([-7, -2], 23)])
def test_attention_is_available_in_the_layers_that_the_model_runs(layer: Any, read: int) -> None:
    vision = SimpleNamespace(model_type="clip_vision_model", num_hidden_layers=24, num_attention_heads=16)
    config = SimpleNamespace(eadp={"keep": 64}, model_type="llava", vision_config=vision, vision_feature_layer=layer)
    settings = ServerSettings.from_config(config, ("renumber",))
    assert settings.tower.layers_run == read
    assert {"visionzip", "hiprune", "prumerge", "trim", "mmtok", "scope", "vispruner"} < set(settings.available_methods)
    assert settings.attention_layers(settings.build_request({"method": "prumerge", "layer": 3}).method) == (3,)
    assert settings.attention_layers(settings.build_request({"method": "hiprune", "deep_layer": 20}).method) == (8, 20)
    assert settings.attention_layers(settings.build_request({"method": "divprune"}).method) == ()
    last = {"method": "visionzip", "layer": -1}
    if read == 24:
        assert settings.attention_layers(settings.build_request(last).method) == (23,)
    else:
        with pytest.raises(ValueError, match=f"layer 23 of the vision tower.* first {read} layers"):
            settings.build_request(last)


@pytest.mark.parametrize("video", [False, True])
def test_attention_is_available_in_all_layers_of_a_siglip_tower(video: bool) -> None:
    vision = SimpleNamespace(model_type="siglip_vision_model", num_hidden_layers=26, num_attention_heads=16)
    own = {"eadp": {"keep": 64, "llava_video": video}, "model_type": "llava_onevision"}
    config = SimpleNamespace(**own, vision_config=vision, vision_feature_layer=-1)
    settings = ServerSettings.from_config(config, ("renumber",))
    assert (settings.tower.layers_run, settings.tower.has_cls, settings.llava_video) == (26, False, video)
    assert {"visionzip", "hiprune", "prumerge", "trim", "mmtok", "scope", "vispruner"} < set(settings.available_methods)
    assert settings.attention_layers(settings.build_request({"method": "prumerge", "layer": -1}).method) == (25,)
    with pytest.raises(ValueError, match="llava_video can be set only for the whole server"):
        settings.build_request({"llava_video": True})


def test_a_server_keeps_the_exact_count_if_a_release_does_not() -> None:
    """TRIM's release adds a mean token, others keep fewer in some cases, but the engine needs the count in advance."""
    vision = SimpleNamespace(model_type="clip_vision_model", num_hidden_layers=24, num_attention_heads=16)
    config = SimpleNamespace(eadp={"keep": 64}, model_type="llava", vision_config=vision, vision_feature_layer=-2)
    settings = ServerSettings.from_config(config, "renumber")
    for name in ("trim", "hiprune", "scope", "mmtok"):
        assert settings.build_request({"method": name}).method.exact
        with pytest.raises(ValueError, match="must know how many tokens stay"):
            settings.build_request({"method": name, "exact": False})
    assert settings.build_request({"method": "trim"}).outputs == ("tower_rows",)
    assert settings.build_request({"method": "mmtok"}).outputs == ("tower_features", "padding")
    assert settings.build_request({"method": "hiprune"}).outputs == ()
    flashvid = settings.build_request({"method": "flashvid", "layer": -2}).method
    assert (flashvid.exact, flashvid.expansion) == (True, 1.0)


def encoded_features(size: int) -> EncodedFeatures:
    return EncodedFeatures(EncodedImage(ImageLayout.contiguous([(1, size)])), torch.zeros(size, 256), 256)


def test_the_cache_drops_the_least_recently_used_features() -> None:
    cache = FeatureCache(4096)
    a, b, c, d = ((image, (), ()) for image in (b"a", b"b", b"c", b"d"))
    for key in (a, b):
        cache.put(key, encoded_features(2))
    assert cache.get(a) is not None
    cache.put(c, encoded_features(1))
    assert [cache.get(key) is None for key in (a, b, c)] == [False, True, False]
    cache.put(d, encoded_features(5))
    assert cache.get(d) is None
    assert cache.bytes == 3072


def test_the_memory_of_a_full_cache_is_reserved_until_the_first_image() -> None:
    cache = FeatureCache(4096)
    cache.reserve(torch.device("cpu"))
    assert cache.reserved_bytes == 4096
    cache.put((b"a", (), ()), encoded_features(1))
    assert cache.reserved_bytes == 0


def test_cached_features_do_not_keep_their_batch_in_memory() -> None:
    rows, states, key = torch.zeros(8, 2, 256), torch.zeros(8, 3, 64), (b"a", (), ("tower_rows",))
    cache = FeatureCache(1 << 20)
    image = EncodedImage(
        ImageLayout.contiguous([(1, 2)]),
        tower_rows=TowerRows(states[0, 1:], states[0, :1]),
        tower_features=states[1, 1:],
    )
    cache.put(key, EncodedFeatures(image, rows[0], 256))
    found = cache.get(key)
    assert found.rows.untyped_storage().nbytes() == 2 * 256 * 4
    assert found.image.tower_rows.rows.untyped_storage().nbytes() == 2 * 64 * 4
    assert found.image.tower_rows.cls.untyped_storage().nbytes() == 64 * 4
    assert found.image.tower_features.untyped_storage().nbytes() == 2 * 64 * 4
    assert cache.bytes == (2 * 256 + 5 * 64) * 4


def overrides_of(line: list[str]) -> dict[str, Any]:
    assert line.count("--hf-overrides") == 1
    return json.loads(line[line.index("--hf-overrides") + 1])


def test_the_command_line_names_architecture_and_settings() -> None:
    line = build_command("pocket", {"method": "eadp", "keep": 64}, ["--port", "8001"])
    overrides = overrides_of(line)
    assert overrides == {"architectures": [ARCHITECTURES["llava"]], "eadp": {"method": "eadp", "keep": 64}}
    assert line[-2:] == ["--port", "8001"]


@pytest.mark.parametrize("form", ["two words", "one word", "underscores"])
def test_overrides_of_the_user_are_merged_with_those_of_the_plugin(form: str) -> None:
    own = '{"rope_theta": 5.0}'
    more = {
        "two words": ["--hf-overrides", own],
        "one word": [f"--hf-overrides={own}"],
        "underscores": ["--hf_overrides", own],
    }
    line = build_command("pocket", {"keep": 64}, [*more[form], "--port", "8001"])
    assert overrides_of(line) == {"rope_theta": 5.0, "architectures": [ARCHITECTURES["llava"]], "eadp": {"keep": 64}}
    assert line[-2:] == ["--port", "8001"]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--hf-overrides", '{"architectures": ["Other"]}'], "eadp serve sets architectures"),
        (["--hf-overrides", '{"eadp": {"keep": 1}}'], "eadp serve sets eadp"),
        (["--hf-overrides", "[1]"], "must be a JSON object"),
        (["--hf-overrides"], "must be a JSON object"),
        (["--hf-overrides.eadp.keep", "3"], "as JSON"),
        (["--model", "other"], "name the model once"),
    ],
)
def test_options_that_would_turn_pruning_off_are_rejected(more: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build_command("pocket", {"keep": 64}, more)


def test_a_server_without_gpu_starts_with_the_memory_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    monkeypatch.setattr(versions, "is_cpu_build", lambda: True)
    assert "--kv-cache-memory-bytes" in build_command("pocket", {"keep": 64})
    own = build_command("pocket", {"keep": 64}, ["--gpu-memory-utilization=0.5", "--served-model-name", "mine"])
    assert "--kv-cache-memory-bytes" not in own
    assert own.count("--served-model-name") == 1
    monkeypatch.setattr(versions, "is_cpu_build", lambda: False)
    assert "--kv-cache-memory-bytes" not in build_command("pocket", {"keep": 64})


def test_eadp_serve_prints_the_command_line_with_options_of_vllm() -> None:
    result = CliRunner().invoke(
        app, ["serve", "pocket", "--keep", "0.25", "--set", "beta=3", "--trust", "--dry-run", "--port", "8001"]
    )
    assert result.exit_code == 0, result.output
    line = shlex.split(result.output)
    expected = {"method": "eadp", "keep": 0.25, "beta": 3, "processor_kwargs": False}
    assert overrides_of(line)["eadp"] == expected
    assert line[0] == "python"
    assert line[line.index("--served-model-name") + 1] == "pocket"
    assert line[-3:] == ["--port", "8001", "--trust-request-mm-kwargs"]


@pytest.mark.parametrize(
    "wrong",
    [
        ["--keep", "0"],
        ["--keep", "all"],
        ["--keep="],
        ["--keep", "64,32"],
        ["--method", "fastv"],
        ["--set", "beta"],
        ["--set", "colour=1"],
        ["--set", "smoothing=3.0"],
        ["--set", "max_question_tokens=0"],
        ["--hf-overrides", '{"eadp": {}}'],
    ],
)
def test_eadp_serve_rejects_wrong_settings(wrong: list[str]) -> None:
    assert CliRunner().invoke(app, ["serve", "pocket", *wrong, "--dry-run"]).exit_code == 2


def test_a_question_that_is_too_long_is_refused() -> None:
    ours = server(keep=64, max_question_tokens=10)
    ours.check_question("Where is it?", lambda text: len(text.split()))
    ours.check_question("a longer question with nine words", lambda text: len(text.split()))
    with pytest.raises(ValueError, match="more than 10 tokens"):
        ours.check_question("a question with many more words than that, ten at least", lambda text: len(text.split()))

    def never(text: str) -> int:
        raise AssertionError("a text that is much too long must not be tokenized")

    with pytest.raises(ValueError, match="more than 10 tokens"):
        ours.check_question("x" * 3_000_000, never)


def test_requests_may_set_other_processor_arguments_only_if_the_server_says_so() -> None:
    server(keep=64).check_processor_kwargs(["crop_size"])
    with pytest.raises(ValueError, match='may only hold "eadp" on this server, not crop_size, do_resize'):
        server(keep=64, processor_kwargs=False).check_processor_kwargs(["do_resize", "crop_size"])


CHILD = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit({})); print(1, flush=True); {}"


@pytest.mark.parametrize(
    ("program", "stop", "code"),
    [
        (CHILD.format(0, "time.sleep(600)"), True, 0),
        (CHILD.format(0, ""), False, 1),
        (CHILD.format(0, "sys.exit(7)"), False, 7),
    ],
    ids=["stopped", "ended by itself", "failed"],
)
def test_the_exit_code_tells_whether_the_server_was_asked_to_stop(program: str, stop: bool, code: int) -> None:
    runner = f"import sys; from eadp.serve.command import run_server; sys.exit(run_server(['-c', {program!r}]))"
    with subprocess.Popen([sys.executable, "-c", runner], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        if stop:
            process.terminate()
        assert process.wait(60) == code


def test_the_folder_of_the_metrics_reaches_the_server_and_rays_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_RAY_EXTRA_ENV_VARS_TO_COPY", "MINE")
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    program = (
        "import os; print(os.path.isdir(os.environ['PROMETHEUS_MULTIPROC_DIR']), "
        "os.environ['VLLM_RAY_EXTRA_ENV_VARS_TO_COPY'])"
    )
    runner = f"from eadp.serve.command import run_server; run_server(['-c', {program!r}])"
    done = subprocess.run([sys.executable, "-c", runner], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "True MINE,PROMETHEUS_MULTIPROC_DIR\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has died")
def test_a_killed_runner_takes_its_server_along() -> None:
    program = "import time; print(1, flush=True); time.sleep(600)"
    runner = f"from eadp.serve.command import run_server; run_server(['-c', {program!r}])"
    with subprocess.Popen([sys.executable, "-c", runner], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        process.kill()
        # The pipe closes when the last process that holds it has ended.
        assert process.stdout.read() == ""


def test_vllm_finds_the_plugin_by_its_entry_point() -> None:
    from eadp.serve import register

    assert EntryPoint("eadp", "eadp.serve:register", "vllm.general_plugins").load() is register
