"""`eadp serve` over HTTP, with the `openai` client."""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from subprocess import PIPE
from typing import Any

import numpy as np
import openai
import pytest
from engines import Query, Transformers
from helpers.fuzzed_settings import random_settings
from http_server import Server, request, serve, until

from eadp.pocket.samples import Sample, samples
from eadp.pocket.storage import WEIGHTS

KEEP = 32


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve("pocket", "--keep", str(KEEP), "--trust") as here:
        yield here


@pytest.fixture(scope="module")
def reference() -> Transformers:
    return Transformers(WEIGHTS)


def text_of(reference: Transformers, sample: Sample, **own: Any) -> str:
    ids, _, _ = reference.answer(Query((sample.image,), (sample.question,), own), {"keep": KEEP})
    end = reference.processor.tokenizer.eos_token_id
    return reference.processor.decode(ids[: ids.index(end)] if end in ids else ids)


@pytest.fixture(scope="module")
def questions() -> list[Sample]:
    return list(samples("test", 4))


def test_answers_equal_those_of_transformers_and_prompts_are_shorter(
    server: Server, reference: Transformers, questions: list[Sample]
) -> None:
    sample, lengths = questions[0], {}
    for keep in (KEEP, 128, 256):
        reply = server.query(sample.image, sample.question, **({"method": "none"} if keep == 256 else {"keep": keep}))
        assert reply.choices[0].message.content == text_of(reference, sample, keep=keep)
        lengths[keep] = reply.usage.prompt_tokens
    assert lengths[256] - lengths[KEEP] == 256 - KEEP
    assert lengths[256] - lengths[128] == 256 - 128
    assert server.query(sample.image, sample.question).usage.prompt_tokens == lengths[KEEP]


def test_metrics_count_tokens_images_and_time(server: Server, questions: list[Sample]) -> None:
    names = ("visual_tokens_total", "visual_tokens_kept_total", "images_cached_total", "pruning_milliseconds_count")
    before = [server.metric(f"eadp:{name}") for name in names]
    for question in ("What is red?", "What is blue?"):
        server.query(questions[2].image, question)
    after = [server.metric(f"eadp:{name}") for name in names]
    tokens, kept, cached, timed = (now - then for now, then in zip(after, before, strict=True))
    assert (tokens, kept, timed) == (2 * 256, 2 * KEEP, 2)
    assert cached >= 1
    assert server.metric("eadp:selection_failures_total") == 0


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ({"keep": -1}, "keep must be at least 1"),
        ({"keep": "many"}, "keep must be a count"),
        ({"method": "nonsense"}, "unknown method 'nonsense'"),
        ({"method": "fastv"}, "fastv cannot be served"),
        ({"colour": 3}, "eadp has no setting colour"),
        ({"coverage": 0.9}, "coverage cannot be served"),
        ({"cache_mib": 1}, "only for the whole server"),
        ({"question": 3}, "question must be a string"),
        ({"beta": -1}, "beta"),
        ({"smoothing": 3.0}, "smoothing must be a whole number"),
        ({"sigma": 1e200}, "sigma must lie in"),
        ({"matrix_limit": None}, "matrix_limit must be a whole number"),
        ({"method": "random", "seed": 1.5}, "seed must be a whole number"),
        ({"method": "visionzip", "layer": 1.5}, "layer must be a whole number"),
        ({"question": "word " * 700_000}, "more than 4096 tokens"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_settings_get_status_400_and_a_message(
    server: Server, questions: list[Sample], own: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=re.escape(sentence)):
        server.query(questions[0].image, questions[0].question, **own)
    assert server.healthy()


def test_the_server_selects_once_before_it_says_that_it_is_healthy(server: Server) -> None:
    """Otherwise the first image would wait until the text encoder is loaded and the selection compiled."""
    assert server.metric("eadp:warmups_total", server.metrics_at_start) >= 1
    assert server.metric("eadp:images_total", server.metrics_at_start) == 0


def test_a_prompt_of_three_megabytes_is_refused_before_the_engine_sees_it(
    server: Server, questions: list[Sample]
) -> None:
    images = server.metric("eadp:images_total")
    with pytest.raises(openai.BadRequestError):
        server.query(questions[0].image, "word " * 600_000)
    assert server.metric("eadp:images_total") == images
    assert server.query(questions[0].image, questions[0].question).choices[0].message.content


FUZZED = 300


def test_the_server_answers_every_one_of_many_random_settings_and_then_as_before(
    server: Server, reference: Transformers, questions: list[Sample]
) -> None:
    """Wrong settings get status 400 and a sentence; right ones get an answer, also if they prune badly."""
    generator = random.Random(11)
    counts = {200: 0, 400: 0}
    for _ in range(FUZZED):
        sample = generator.choice(questions)
        body = request(sample.image, sample.question)
        extra = body.pop("extra_body")
        settings = random_settings(generator, finite=True)
        # Python's JSON writes a lone surrogate as an escape sequence, as a client may.
        data = json.dumps({**body, **extra, "max_tokens": 1, "mm_processor_kwargs": {"eadp": settings}}).encode()
        post = urllib.request.Request(f"{server.root}/v1/chat/completions", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(post, timeout=600) as response:
                status, text = response.status, response.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        assert status in counts, (status, settings, text[:500])
        assert json.loads(text)
        assert len(text) < 10_000
        counts[status] += 1
    assert min(counts.values()) > FUZZED // 10, counts
    assert server.healthy()
    sample = questions[0]
    assert server.query(sample.image, sample.question).choices[0].message.content == text_of(reference, sample)


def test_other_processor_arguments_get_status_400(server: Server, questions: list[Sample]) -> None:
    body = request(questions[0].image, questions[0].question)
    body["extra_body"]["mm_processor_kwargs"] = {"do_resize": False}
    with pytest.raises(openai.BadRequestError, match="not do_resize"):
        server.client.chat.completions.create(**body)
    assert server.healthy()


def test_metrics_name_the_model(server: Server) -> None:
    assert re.search(r'^eadp:images_total{[^}]*model_name="pocket"', server.get("/metrics"), re.MULTILINE)


STREAM = """
import sys, openai, json
client = openai.OpenAI(base_url=sys.argv[1], api_key="none")
for _ in client.chat.completions.create(stream=True, **json.loads(sys.stdin.read())):
    print("more", flush=True)
"""


def test_a_killed_client_leaves_the_server_healthy(server: Server, questions: list[Sample]) -> None:
    body = request(questions[1].image, questions[1].question)
    body |= {"max_tokens": 700, "extra_body": {"ignore_eos": True}}
    clients = [
        subprocess.Popen([sys.executable, "-c", STREAM, f"{server.root}/v1"], stdin=PIPE, stdout=PIPE, text=True)
        for _ in range(2)
    ]
    for client in clients:
        client.stdin.write(json.dumps(body))
        client.stdin.close()
    for client in clients:
        assert client.stdout.readline() == "more\n"
        client.kill()
        client.wait()
    until(lambda: server.metric("vllm:num_requests_running") == 0, "the requests of killed clients are aborted")
    assert server.healthy()
    assert server.query(questions[1].image, questions[1].question).choices[0].message.content


def test_two_hundred_concurrent_requests_get_the_same_answers_as_alone(server: Server, reference: Transformers) -> None:
    generator = np.random.default_rng(0)
    crowd = list(samples("train", 200))
    budgets = [int(keep) for keep in generator.choice([16, 32, 64], len(crowd))]

    async def all_at_once() -> list[str]:
        requests = [
            server.crowd.chat.completions.create(**request(sample.image, sample.question, keep=keep))
            for sample, keep in zip(crowd, budgets, strict=True)
        ]
        return [reply.choices[0].message.content for reply in await asyncio.gather(*requests)]

    answers = asyncio.run(all_at_once())
    alone = [text_of(reference, sample, keep=keep) for sample, keep in zip(crowd, budgets, strict=True)]
    assert answers == alone
