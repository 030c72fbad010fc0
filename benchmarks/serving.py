"""Measure what pruning gives a vLLM server: requests per second and time to the first token, against no pruning.

One server gets rounds of requests that keep some of the visual tokens, and rounds of requests that keep all of them
(`mm_processor_kwargs`), in turn within one run. No image is sent twice, so that no cache helps. The model is a LLaVA
with random weights and 576 tokens per image, small enough for a CPU. The figures are ratios between the two kinds of
requests, and do not apply to a GPU.

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
import tempfile
import time
import urllib.request
from itertools import count
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
    """Write a LLaVA of 40 million random parameters, with the widths of the pocket model's tower and its tokenizer."""
    torch.manual_seed(0)
    config = hf.LlavaConfig.from_pretrained(WEIGHTS)
    config.vision_config.image_size, config.vision_config.patch_size = SIDE, PATCH
    config.image_seq_length = (SIDE // PATCH) ** 2
    for name, value in {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 12}.items():
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


def make_request(seed: int, settings: dict[str, Any]) -> dict[str, Any]:
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
                "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}],
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


def main(
    keep: Annotated[int, typer.Option(help="Visual tokens that stay, of 576.", min=1, max=576)] = 64,
    rounds: Annotated[int, typer.Option(help="Rounds with and without pruning.", min=1)] = 4,
    requests: Annotated[int, typer.Option(help="Requests per round.", min=1)] = 16,
    at_once: Annotated[int, typer.Option(help="Requests at the same time.", min=1)] = 4,
    quick: Annotated[bool, typer.Option("--quick", help="One round of four requests, as a quick check.")] = False,
) -> None:
    """Measure, print, and write benchmarks/results/serving.json and the table in docs/guides/serving.md."""
    if quick:
        rounds, requests = 1, 4
    modes: dict[str, dict[str, Any]] = {"pruned": {"keep": keep}, "unpruned": {"method": "none"}}
    seeds = count()
    found: dict[str, dict[str, list[float]]] = {mode: {"rate": [], "first": []} for mode in modes}
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        arguments = ["--host=127.0.0.1", f"--port={port}", "--trust-request-mm-kwargs", *SERVER]
        line = build_command(str(write_checkpoint(Path(folder))), {"keep": keep}, arguments)
        server = subprocess.Popen(line, env={**os.environ, **ENVIRONMENT})
        try:
            root = f"http://127.0.0.1:{port}"
            wait_until_ready(root, server)
            for number in range(rounds + 1):
                for mode in list(modes)[:: -1 if number % 2 else 1]:
                    client = openai.AsyncOpenAI(base_url=f"{root}/v1", api_key="none", timeout=600, max_retries=0)
                    batch = [make_request(next(seeds), modes[mode]) for _ in range(requests)]
                    rate, waits = asyncio.run(send_requests(client, batch, at_once))
                    if number:
                        found[mode]["rate"].append(rate)
                        found[mode]["first"] += waits
        finally:
            server.terminate()
            server.wait(60)
    ratios = [
        pruned / unpruned for pruned, unpruned in zip(found["pruned"]["rate"], found["unpruned"]["rate"], strict=True)
    ]
    first = {mode: statistics.median(result["first"]) for mode, result in found.items()}
    summary = {
        "keep": keep,
        "of": (SIDE // PATCH) ** 2,
        "rounds": rounds,
        "requests": requests,
        "at_once": at_once,
        "requests_per_second_ratio": statistics.median(ratios),
        "time_to_first_token_ratio": first["pruned"] / first["unpruned"],
        "measured": found,
    }
    head = [f"{keep} of {summary['of']} visual tokens, {at_once} requests at once", "requests/s", "first token, ms"]
    rows = [[mode, f"{statistics.median(found[mode]['rate']):.2f}", f"{first[mode]:.0f}"] for mode in modes]
    rows.append(["ratio", f"{summary['requests_per_second_ratio']:.2f}", f"{summary['time_to_first_token_ratio']:.2f}"])
    table = Table(*head)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    if not quick:
        common.write_into(PAGE, "serving", format_markdown(head, rows))
        Console().print(f"written: {common.save('serving', summary)}, {PAGE}")


if __name__ == "__main__":
    typer.run(main)
