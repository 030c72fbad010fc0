"""Measure what pruning gives a vLLM server under load: requests per second and time to the first token.

One server gets batches of requests that differ in how many are sent at once, in whether images and questions are new or
repeated, and in the method (`mm_processor_kwargs`): EADP, which reads the question, DivPrune, which does not, and none.
The methods take turns within one run, and ratios are medians over rounds. The model is a LLaVA with random weights and
576 tokens per image, small enough for a CPU: its language model has 22 times the parameters of its vision tower, as in
LLaVA-1.5-7B. The figures do not apply to a GPU.

    PYTHONPATH=.:hosts/shim $(hosts/env vllm)/bin/python benchmarks/serving.py            # some minutes
    … benchmarks/serving.py --quick
"""

from __future__ import annotations

import asyncio
import base64
import io
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count, islice, product
from pathlib import Path
from typing import Annotated, Any

import common
import numpy as np
import openai
import torch
import transformers as hf
import typer
from PIL import Image
from rich.console import Console
from rich.table import Table

from eadp.pocket.storage import WEIGHTS
from eadp.serve.command import build_command
from eadp.utils.tables import format_markdown

PAGE = common.ROOT / "docs" / "guides" / "serving.md"
SIDE, PATCH, ANSWER_TOKENS = 336, 14, 8
QUESTION = "What color is the small circle next to the blue ring?"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
SERVER = ["--dtype=float32", "--enforce-eager", "--block-size=32", "--max-model-len=1024", "--served-model-name=random"]


def write_checkpoint(folder: Path) -> Path:
    """Write a LLaVA of 28 million random parameters, with the widths of the pocket model's tower and its tokenizer."""
    torch.manual_seed(0)
    config = hf.LlavaConfig.from_pretrained(WEIGHTS)
    config.vision_config.image_size, config.vision_config.patch_size = SIDE, PATCH
    config.image_seq_length = (SIDE // PATCH) ** 2
    for name, value in {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8}.items():
        setattr(config.text_config, name, value)
    config.text_config.num_attention_heads = config.text_config.num_key_value_heads = 8
    config.text_config.head_dim = 64
    hf.LlavaForConditionalGeneration(config).save_pretrained(folder)
    processor = hf.LlavaProcessor.from_pretrained(WEIGHTS)
    processor.image_processor.size = {"shortest_edge": SIDE}
    processor.image_processor.crop_size = {"height": SIDE, "width": SIDE}
    processor.patch_size = PATCH
    processor.save_pretrained(folder)
    for file in WEIGHTS.glob("clip_text.*"):
        shutil.copy(file, folder)
    return folder


def make_request(seed: int, question: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Make a request with a random image."""
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.NEAREST).save(buffer, "png")
    url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    return {
        "model": "random",
        "messages": [
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}],
            }
        ],
        "temperature": 0,
        "max_tokens": ANSWER_TOKENS,
        "stream": True,
        "extra_body": {"ignore_eos": True, "mm_processor_kwargs": {"eadp": settings}},
    }


async def send_requests(
    client: openai.AsyncOpenAI, requests: list[dict[str, Any]], at_once: int
) -> tuple[float, list[float]]:
    """Send requests, at most `at_once` at the same time.

    Returns:
        The requests per second, and the milliseconds to the first token of each request.
    """
    slots = asyncio.Semaphore(at_once)

    async def send(request: dict[str, Any]) -> float:
        async with slots:
            start, first = time.perf_counter(), None
            async for chunk in await client.chat.completions.create(**request):
                if first is None and chunk.choices and chunk.choices[0].delta.content is not None:
                    first = time.perf_counter()
            return 1000 * ((first or time.perf_counter()) - start)

    start = time.perf_counter()
    waits = await asyncio.gather(*(send(request) for request in requests))
    return len(requests) / (time.perf_counter() - start), list(waits)


def wait_until_ready(root: str, server: subprocess.Popen[bytes], timeout: float = 1800) -> None:
    """Wait until the server answers.

    Raises:
        RuntimeError: If it ends, or does not answer within `timeout` seconds.
    """
    end = time.monotonic() + timeout
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{root}/health", timeout=5):
                return
        except OSError:
            time.sleep(1)
    raise RuntimeError("the server did not start")


@dataclass(frozen=True)
class Load:
    """A kind of load.

    Attributes:
        images: "new" if no image is sent twice, "same" if all requests have one image.
        questions: "new" or "same", likewise.
        at_once: The number of requests at the same time.
    """

    images: str
    questions: str
    at_once: int

    def make_batch(self, numbers: Iterator[int], settings: dict[str, Any], least: int) -> list[dict[str, Any]]:
        """Make requests, at least `least` of them, and as many as are sent at once."""
        return [
            make_request(
                number if self.images == "new" else 0,
                f"{QUESTION} {number}" if self.questions == "new" else QUESTION,
                settings,
            )
            for number in islice(numbers, max(least, self.at_once))
        ]


LOADS = [
    Load(images, questions, at_once)
    for images, questions in product(("new", "same"), repeat=2)
    for at_once in (1, 8, 32)
]


def measure(
    loads: list[Load], modes: dict[str, dict[str, Any]], rounds: int, requests: int
) -> dict[Load, dict[str, list[tuple[float, float]]]]:
    """Send all loads to a server.

    Returns:
        Requests per second and the median milliseconds to the first token, by load, mode and round.
    """
    numbers = count(1)
    found: dict[Load, dict[str, list[tuple[float, float]]]] = {load: {mode: [] for mode in modes} for load in loads}
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        arguments = ["--host=127.0.0.1", f"--port={port}", "--trust-request-mm-kwargs", *SERVER]
        line = build_command(str(write_checkpoint(Path(folder))), modes["eadp"], arguments)
        server = subprocess.Popen([sys.executable, *line], env={**os.environ, **ENVIRONMENT})
        try:
            root = f"http://127.0.0.1:{port}"
            wait_until_ready(root, server)
            for number, load in product(range(rounds), loads):
                for mode in list(modes)[:: -1 if number % 2 else 1]:
                    client = openai.AsyncOpenAI(base_url=f"{root}/v1", api_key="none", timeout=1800, max_retries=0)
                    batch = load.make_batch(numbers, modes[mode], requests)
                    rate, waits = asyncio.run(send_requests(client, batch, load.at_once))
                    found[load][mode].append((rate, statistics.median(waits)))
        finally:
            server.terminate()
            server.wait(60)
    return found


def main(
    keep: Annotated[int, typer.Option(help="Visual tokens that stay, of 576.", min=1, max=576)] = 64,
    rounds: Annotated[int, typer.Option(help="Rounds of all loads and methods.", min=1)] = 2,
    requests: Annotated[int, typer.Option(help="Requests per load, at least.", min=1)] = 8,
    quick: Annotated[bool, typer.Option("--quick", help="One round of two loads, as a quick check.")] = False,
) -> None:
    """Measure, print, and write benchmarks/results/serving.json and the table in docs/guides/serving.md."""
    loads = LOADS[:2] if quick else LOADS
    modes: dict[str, dict[str, Any]] = {
        "eadp": {"method": "eadp", "keep": keep},
        "divprune": {"method": "divprune", "keep": keep},
        "none": {"method": "none"},
    }
    found = measure(loads, modes, 1 if quick else rounds, requests)

    def ratio(load: Load, mode: str, which: int) -> float:
        pairs = zip(found[load][mode], found[load]["none"], strict=True)
        return statistics.median(pruned[which] / unpruned[which] for pruned, unpruned in pairs)

    head = ["images", "questions", "at once"]
    head += ["unpruned requests/s", "eadp", "divprune", "unpruned first token, ms", "eadp", "divprune"]
    rows = []
    for load in loads:
        row = [load.images, load.questions, str(load.at_once)]
        for which, digits in ((0, 2), (1, 0)):
            unpruned = statistics.median(each[which] for each in found[load]["none"])
            row += [f"{unpruned:.{digits}f}", *(f"× {ratio(load, mode, which):.2f}" for mode in ("eadp", "divprune"))]
        rows.append(row)
    table = Table(*head)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    if not quick:
        summary = {
            "keep": keep,
            "of": (SIDE // PATCH) ** 2,
            "rounds": rounds,
            "measured": [{**asdict(load), **by_mode} for load, by_mode in found.items()],
        }
        common.write_into(PAGE, "serving", format_markdown(head, rows))
        Console().print(f"written: {common.save('serving', summary)}, {PAGE}")


if __name__ == "__main__":
    typer.run(main)
