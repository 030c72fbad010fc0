"""How vLLM finds the plugin and its architectures."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import entry_points

import pytest
from helpers.deployments import command_lines
from vllm.model_executor.models import ModelRegistry

from eadp.serve import ARCHITECTURES, compat, register, versions
from eadp.serve.command import METRICS_FOLDER_VARIABLE, RAY_VARIABLES


def module_of(architecture: str) -> str:
    return ModelRegistry.models[architecture].module_name


def test_vllm_finds_the_plugin_and_may_call_it_twice() -> None:
    (found,) = entry_points(group="vllm.general_plugins", name="eadp")
    for _ in range(2):
        found.load()()
    assert {family: module_of(name) for family, name in ARCHITECTURES.items()} == {
        family: f"eadp.serve.{family}" for family in ARCHITECTURES
    }


def test_loading_an_architecture_with_an_untested_vllm_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed_version", lambda: "0.99.0")
    register()
    try:
        module = module_of(ARCHITECTURES["llava"])
        sys.modules.pop(module, None)
        with pytest.raises(
            RuntimeError, match=r"vLLM 0\.99\.0 is installed, but .* tested with vLLM 0\.31\.0 and 0\.32\.0"
        ):
            importlib.import_module(module)
    finally:
        monkeypatch.undo()
        register()


@pytest.mark.parametrize("name", compat._NAMES)
def test_vllm_has_everything_that_compat_names(name: str) -> None:
    assert getattr(compat, name) is not None


def test_ray_hands_the_folder_of_the_metrics_on_to_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """`eadp serve` sets this variable; vLLM copies no others than its own by itself."""
    from vllm.ray.ray_env import get_env_vars_to_copy

    assert METRICS_FOLDER_VARIABLE not in get_env_vars_to_copy()
    monkeypatch.setenv(RAY_VARIABLES, METRICS_FOLDER_VARIABLE)
    assert METRICS_FOLDER_VARIABLE in get_env_vars_to_copy()


@pytest.mark.parametrize("name", command_lines())
def test_vllm_knows_the_options_of_the_container_files(name: str) -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    _, *options = command_lines()[name]
    own = {"--keep", "--set"}
    pairs = [pair for pair in zip(options[::2], options[1::2], strict=True) if pair[0] not in own]
    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args([word for pair in pairs for word in pair])
    assert parsed.allowed_media_domains == ["media.invalid"]
    assert parsed.port == 8000
