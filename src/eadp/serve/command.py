"""Build the command line of a server, and run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from eadp.pocket import checkpoint
from eadp.pocket.names import DRAWN, PHOTO
from eadp.serve import versions
from eadp.serve.plugin import ARCHITECTURES, MROPE_FAMILIES
from eadp.serve.request import SETTINGS_KEY, ServerSettings
from eadp.utils.die_with_parent import die_with_parent

# `vllm serve` runs the same program, but does not start in the CPU builds of vLLM.
SERVER = ("-m", "vllm.entrypoints.openai.api_server")
METRICS_FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
RAY_VARIABLES = "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"
"""Which variables vLLM hands on to the workers that Ray starts, besides its own: names with commas between them."""


CPU_CACHE_BYTES = dict.fromkeys(DRAWN, 1 << 30)
"""The size of the KV cache on a machine without a GPU, by model; `OTHER_CPU_CACHE_BYTES` for all others.

By itself, vLLM takes 92 % of all memory there, and does not start where less is free.
"""
OTHER_CPU_CACHE_BYTES = 4 << 30
MEMORY_OPTIONS = ("--kv-cache-memory-bytes", "--gpu-memory-utilization")
MEMORY_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"


def build_command(model: str, settings: dict[str, Any], more: Sequence[str] = ()) -> list[str]:
    """Build the command line that serves a model with pruned images.

    Args:
        model: "pocket", "things", "smol", or the folder or the hub name of a checkpoint.
        settings: The settings of the server, as in `--hf-overrides '{"eadp": {…}}'`.
        more: Options that are passed to vLLM. Their `--hf-overrides` are merged with those of the plugin.

    Returns:
        The arguments of Python.

    Raises:
        ValueError: The model cannot be served with pruning, or a setting or an option is wrong.
        OSError: The checkpoint was not found.
    """
    from transformers import AutoConfig

    # transformers then knows this vision tower, so that a checkpoint with it is refused by name.
    from eadp.models.efficientnet_lite import EfficientNetLiteConfig

    if model == PHOTO:
        raise ValueError(_describe_unknown_tower(model))
    folder = str(checkpoint(model)) if model in DRAWN else model
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    family = config.model_type
    if family not in ARCHITECTURES:
        raise ValueError(f"{model} has model_type {family}; eadp serves {', '.join(ARCHITECTURES)}")
    if isinstance(getattr(config, "vision_config", None), EfficientNetLiteConfig):
        raise ValueError(_describe_unknown_tower(model))
    setattr(config, SETTINGS_KEY, settings)
    ServerSettings.from_config(config, ("renumber", "keep") if family in MROPE_FAMILIES else ("renumber",))
    overrides, others = _split_overrides(more)
    overrides |= {"architectures": [ARCHITECTURES[family]], SETTINGS_KEY: settings}
    given = {_option_name(each) for each in others}
    defaults: list[str] = []
    if model in DRAWN and "--served-model-name" not in given:
        defaults += ["--served-model-name", model]
    if versions.is_cpu_build() and given.isdisjoint(MEMORY_OPTIONS) and not os.environ.get(MEMORY_VARIABLE):
        defaults += ["--kv-cache-memory-bytes", str(CPU_CACHE_BYTES.get(model, OTHER_CPU_CACHE_BYTES))]
    return [*SERVER, "--model", folder, "--hf-overrides", json.dumps(overrides), *defaults, *others]


def _describe_unknown_tower(model: str) -> str:
    return (
        f"the vision tower of {model} is EfficientNet-Lite, which vLLM does not have: run the model with transformers "
        "and `eadp.attach` instead"
    )


def _split_overrides(options: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Split `--hf-overrides` from the other options of vLLM.

    vLLM takes the last one of several, so one of the user's own would turn the pruning off.
    """
    overrides: dict[str, Any] = {}
    others: list[str] = []
    remaining = list(options)
    while remaining:
        option = remaining.pop(0)
        name = _option_name(option)
        if name == "--model":
            raise ValueError("name the model once, as in: eadp serve MODEL --keep 64; leave out --model")
        if name.startswith("--hf-overrides."):
            raise ValueError(f"write {option} as JSON: --hf-overrides '{{…}}'")
        if name != "--hf-overrides":
            others.append(option)
            continue
        text = option.partition("=")[2] if "=" in option else remaining.pop(0) if remaining else ""
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ValueError(f"--hf-overrides must be a JSON object, got {text!r}")
        if taken := sorted({"architectures", SETTINGS_KEY} & set(found)):
            raise ValueError(
                f"eadp serve sets {' and '.join(taken)} in --hf-overrides: leave them out, and use --keep, --method "
                "and --set"
            )
        overrides |= found
    return overrides, others


def _option_name(option: str) -> str:
    """Return the name of an option without its value; vLLM also accepts names with underscores."""
    return option.partition("=")[0].replace("_", "-")


def run_server(arguments: Sequence[str]) -> int:
    """Run a server until it stops, and collect the metrics of its workers in a temporary folder.

    SIGTERM to this process stops the server. If this process is killed, the server stops too.

    Args:
        arguments: The arguments of Python, from `build_command`.

    Returns:
        The exit code: 0 if the server was asked to stop and did, otherwise that of the server, but never 0.
    """
    asked_to_stop = False
    with tempfile.TemporaryDirectory() as folder:
        line = [*die_with_parent(signal.SIGTERM), sys.executable, *arguments]
        handed_on = ",".join(filter(None, [os.environ.get(RAY_VARIABLES), METRICS_FOLDER_VARIABLE]))
        environment = {METRICS_FOLDER_VARIABLE: folder, **os.environ, RAY_VARIABLES: handed_on}
        server = subprocess.Popen(line, env=environment)

        def stop(*_: object) -> None:
            nonlocal asked_to_stop
            asked_to_stop = True
            server.terminate()

        signal.signal(signal.SIGTERM, stop)
        while True:
            try:
                code = server.wait()
            except KeyboardInterrupt:
                # The terminal sends Ctrl+C to the server too, which then stops by itself.
                asked_to_stop = True
                continue
            return code if code or asked_to_stop else 1
