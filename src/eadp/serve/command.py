"""The command line of a server, and running it."""

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
from eadp.serve.plugin import ARCHITECTURES, WITH_COORDINATES
from eadp.serve.request import KEY, ServerSettings

# `vllm serve` is the same program, but its builds for CPUs do not start it.
SERVER = ("-m", "vllm.entrypoints.openai.api_server")
METRICS_PLACE = "PROMETHEUS_MULTIPROC_DIR"


def command(model: str, settings: dict[str, Any], more: Sequence[str] = ()) -> list[str]:
    """The line that serves a model pruned. settings: of the server, as in `--hf-overrides`. more: options of vLLM."""
    from transformers import AutoConfig

    if model == POCKET:
        from eadp.pocket.storage import WEIGHTS

        model = str(WEIGHTS)
    config = AutoConfig.from_pretrained(model)
    kind = config.model_type
    if kind not in ARCHITECTURES:
        raise ValueError(f"{model} is a {kind}; eadp serves {', '.join(ARCHITECTURES)}")
    setattr(config, KEY, settings)
    ServerSettings.of(config, ("renumber", "keep") if kind in WITH_COORDINATES else ("renumber",))
    overrides = json.dumps({"architectures": [ARCHITECTURES[kind]], KEY: settings})
    return [sys.executable, *SERVER, "--model", model, "--hf-overrides", overrides, *more]


def run(line: Sequence[str]) -> int:
    """Run a server until it ends; what ends us ends it. Its workers' metrics are gathered for its endpoint."""
    with tempfile.TemporaryDirectory() as place:
        server = subprocess.Popen(line, env={METRICS_PLACE: place, **os.environ})
        signal.signal(signal.SIGTERM, lambda *_: server.terminate())
        while True:
            try:
                return server.wait()
            except KeyboardInterrupt:
                # The terminal told the server too: it ends by itself.
                continue
