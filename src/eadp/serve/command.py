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

from eadp.loading import POCKET
from eadp.serve.plugin import ARCHITECTURES, MROPE_FAMILIES
from eadp.serve.request import SETTINGS_KEY, ServerSettings

# `vllm serve` runs the same program, but does not start in the CPU builds of vLLM.
SERVER = ("-m", "vllm.entrypoints.openai.api_server")
METRICS_FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


def build_command(model: str, settings: dict[str, Any], more: Sequence[str] = ()) -> list[str]:
    """Build the command line that serves a model with pruned images.

    Args:
        model: "pocket", or the folder or the hub name of a checkpoint.
        settings: The settings of the server, as in `--hf-overrides '{"eadp": {…}}'`.
        more: Options that are passed to vLLM.

    Returns:
        The program and its arguments.

    Raises:
        ValueError: The model cannot be served with pruning, or a setting is wrong.
        OSError: The checkpoint was not found.
    """
    from transformers import AutoConfig

    if model == POCKET:
        from eadp.pocket.storage import WEIGHTS

        model = str(WEIGHTS)
    config = AutoConfig.from_pretrained(model, trust_remote_code=False)
    family = config.model_type
    if family not in ARCHITECTURES:
        raise ValueError(f"{model} has model_type {family}; eadp serves {', '.join(ARCHITECTURES)}")
    setattr(config, SETTINGS_KEY, settings)
    ServerSettings.from_config(config, ("renumber", "keep") if family in MROPE_FAMILIES else ("renumber",))
    overrides = json.dumps({"architectures": [ARCHITECTURES[family]], SETTINGS_KEY: settings})
    return [sys.executable, *SERVER, "--model", model, "--hf-overrides", overrides, *more]


def run_server(line: Sequence[str]) -> int:
    """Run a server until it stops, and collect the metrics of its workers in a temporary folder.

    SIGTERM to this process stops the server.

    Args:
        line: The command line, from `build_command`.

    Returns:
        The exit code of the server.
    """
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(line, env={METRICS_FOLDER_VARIABLE: folder, **os.environ})
        signal.signal(signal.SIGTERM, lambda *_: server.terminate())
        while True:
            try:
                return server.wait()
            except KeyboardInterrupt:
                # The terminal sends Ctrl+C to the server too, which then stops by itself.
                continue
