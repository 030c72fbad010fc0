"""A server of `eadp serve` for tests, and requests to it."""

from __future__ import annotations

import base64
import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import openai
import pytest
from PIL import Image

EADP = [sys.executable, "-c", "from eadp.cli import app; app()"]
SMALL = ["--enforce-eager", "--dtype=float32", "--block-size=32", "--max-model-len=1024"]
TIMEOUT = 1800
"""Seconds to wait for a condition on a busy machine before the test fails."""


class Server:
    """A running server.

    Attributes:
        root: Its address.
        client: Sends one request at a time.
        crowd: Sends requests at once.
        metrics_at_start: Its metrics when it first said that it is healthy, before any request.
    """

    def __init__(self, port: int) -> None:
        self.root = f"http://127.0.0.1:{port}"
        self.client = openai.OpenAI(base_url=f"{self.root}/v1", api_key="none", timeout=TIMEOUT, max_retries=0)
        self.crowd = openai.AsyncOpenAI(base_url=f"{self.root}/v1", api_key="none", timeout=TIMEOUT, max_retries=0)
        self.metrics_at_start = ""

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.root + path, timeout=60) as response:
            return response.read().decode()

    def healthy(self) -> bool:
        try:
            self.get("/health")
        except OSError:
            return False
        return True

    def metric(self, name: str, metrics: str | None = None) -> float:
        """Return the value of a metric, summed over its labels."""
        text = self.get("/metrics") if metrics is None else metrics
        lines = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, lines))

    def query(self, image: Image.Image, text: str, **own: Any) -> Any:
        return self.client.chat.completions.create(**request(image, text, **own))


def request(image: Image.Image, text: str, **own: Any) -> dict[str, Any]:
    """Build a request to the pocket model; `own` are the settings of the plugin."""
    written = io.BytesIO()
    image.save(written, "png")
    # The pocket model's chat template does not contain the first token; the tokenizer adds it.
    extra: dict[str, Any] = {"add_special_tokens": True}
    if own:
        extra["mm_processor_kwargs"] = {"eadp": own}
    return {
        "model": "pocket",
        "messages": [message("image", "png", written.getvalue(), text)],
        "temperature": 0,
        "max_tokens": 8,
        "extra_body": extra,
    }


def message(modality: str, kind: str, data: bytes, text: str) -> dict[str, Any]:
    """Build the message of a user with an image or clip."""
    url = {"url": f"data:{modality}/{kind};base64,{base64.b64encode(data).decode()}"}
    content = [{"type": f"{modality}_url", f"{modality}_url": url}, {"type": "text", "text": text}]
    return {"role": "user", "content": content}


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"{what}: not after {TIMEOUT} s")
        time.sleep(0.5)


@contextmanager
def serve(model: str, *options: str) -> Iterator[Server]:
    """Run `eadp serve` on a free port of this machine while the block runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = [*EADP, "serve", model, *options, "--host", "127.0.0.1", "--port", str(port), *SMALL]
    process = subprocess.Popen(line, env=os.environ, start_new_session=True)
    here = Server(port)
    try:
        until(lambda: here.healthy() or process.poll() is not None, "the server is up")
        assert process.poll() is None
        here.metrics_at_start = here.get("/metrics")
        yield here
    finally:
        process.terminate()
        try:
            process.wait(60)
        finally:
            # Stop its child processes too, if any are left.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
