"""What pruning does for a server: requests a second and time to the first token, pruned against unpruned.

One server, the same images and questions, both ways in turn within one run: rounds of requests that keep some of the
visual tokens, and rounds that keep all (`mm_processor_kwargs`). No image comes twice, so that no cache helps. The model
is LLaVA's architecture with random weights, 576 tokens an image, small enough for a CPU: the figures are ratios between
two ways of asking this server, and say nothing about a GPU.

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
SIDE, PATCH, ANSWER = 336, 14, 8
QUESTION = "What color is the small circle next to the blue ring?"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
SERVER = ["--dtype=float32", "--enforce-eager", "--block-size=32", "--max-model-len=1024", "--served-model-name=random"]


def checkpoint(folder: Path) -> Path:
    """A LLaVA of 40 million random parameters that sees with the pocket model's width and speaks its words."""
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
    for side in WEIGHTS.glob("clip_text.*"):
        shutil.copy(side, folder)
    return folder


def body(seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    written = io.BytesIO()
    Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.NEAREST).save(written, "png")
    url = "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()
    return {
        "model": "random",
        "messages": [
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}],
            }
        ],
        "temperature": 0,
        "max_tokens": ANSWER,
        "stream": True,
        "extra_body": {"ignore_eos": True, "mm_processor_kwargs": {"eadp": settings}},
    }


async def load(client: openai.AsyncOpenAI, bodies: list[dict[str, Any]], at_once: int) -> tuple[float, list[float]]:
    """Requests a second, and milliseconds to the first token of each."""
    turns = asyncio.Semaphore(at_once)

    async def one(request: dict[str, Any]) -> float:
        async with turns:
            start, first = time.perf_counter(), None
            async for chunk in await client.chat.completions.create(**request):
                if first is None and chunk.choices and chunk.choices[0].delta.content is not None:
                    first = time.perf_counter()
            return 1000 * ((first or time.perf_counter()) - start)

    start = time.perf_counter()
    waits = await asyncio.gather(*(one(request) for request in bodies))
    return len(bodies) / (time.perf_counter() - start), list(waits)


def wait_for(root: str, server: subprocess.Popen[bytes], patience: float = 1800) -> None:
    end = time.monotonic() + patience
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{root}/health", timeout=5):
                return
        except OSError:
            time.sleep(1)
    raise RuntimeError("the server did not come up")


def main(
    keep: Annotated[int, typer.Option(help="Tokens of 576 that stay.", min=1, max=576)] = 64,
    rounds: Annotated[int, typer.Option(help="Rounds of each way.", min=1)] = 4,
    requests: Annotated[int, typer.Option(help="Requests a round.", min=1)] = 16,
    at_once: Annotated[int, typer.Option(help="Requests at the same time.", min=1)] = 4,
    quick: Annotated[bool, typer.Option("--quick", help="One round of four, to see that it runs.")] = False,
) -> None:
    if quick:
        rounds, requests = 1, 4
    ways: dict[str, dict[str, Any]] = {"pruned": {"keep": keep}, "unpruned": {"method": "none"}}
    seeds = count()
    found: dict[str, dict[str, list[float]]] = {way: {"rate": [], "first": []} for way in ways}
    with tempfile.TemporaryDirectory() as place, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        more = ["--host=127.0.0.1", f"--port={port}", "--trust-request-mm-kwargs", *SERVER]
        line = build_command(str(checkpoint(Path(place))), {"keep": keep}, more)
        server = subprocess.Popen(line, env={**os.environ, **ENVIRONMENT})
        try:
            root = f"http://127.0.0.1:{port}"
            wait_for(root, server)
            for number in range(rounds + 1):
                for way in list(ways)[:: -1 if number % 2 else 1]:
                    client = openai.AsyncOpenAI(base_url=f"{root}/v1", api_key="none", timeout=600, max_retries=0)
                    bodies = [body(next(seeds), ways[way]) for _ in range(requests)]
                    rate, waits = asyncio.run(load(client, bodies, at_once))
                    if number:
                        found[way]["rate"].append(rate)
                        found[way]["first"] += waits
        finally:
            server.terminate()
            server.wait(60)
    ratios = [mine / theirs for mine, theirs in zip(found["pruned"]["rate"], found["unpruned"]["rate"], strict=True)]
    first = {way: statistics.median(result["first"]) for way, result in found.items()}
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
    rows = [[way, f"{statistics.median(found[way]['rate']):.2f}", f"{first[way]:.0f}"] for way in ways]
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
