"""A server of Qwen3-VL over HTTP: it prunes clips by the question."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import openai
import pytest
from checkpoints import folder_of
from engines import clip, random_question
from http_server import Server, message, serve

from eadp.serve.versions import installed_version

FRAMES = 8

pytestmark = pytest.mark.skipif(
    installed_version() == "0.31.0",
    reason="vLLM 0.31 reads no clips over HTTP with transformers 5.19, pruned or not",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = folder_of("qwen3_vl", tmp_path_factory.mktemp("checkpoints"))
    with serve(str(folder), "--keep", "0.25", "--trust", "--served-model-name", "tiny") as here:
        yield here


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A video of random frames, as a file."""
    frames = clip(3, FRAMES, width=64, height=48)
    path: Path = tmp_path_factory.mktemp("video") / "film.mp4"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), 2.0, (64, 48))
    for frame in frames:
        writer.write(frame)
    writer.release()
    return path.read_bytes()


def ask(server: Server, film: bytes, **own: object) -> openai.types.chat.ChatCompletion:
    return server.client.chat.completions.create(
        model="tiny",
        messages=[message("video", "mp4", film, random_question(3))],
        temperature=0,
        max_tokens=4,
        extra_body={"ignore_eos": True, "mm_processor_kwargs": {"eadp": own}},
    )


@pytest.mark.parametrize(
    "own",
    [
        {"method": "evs"},
        {"method": "vidcom2"},
        {"method": "vcast"},
        {"method": "eadp"},
        {"method": "eadp", "time": 2},
        {"method": "eadp", "question": "another"},
    ],
    ids=lambda own: "-".join(f"{name}={value}" for name, value in own.items()),
)
def test_a_clip_is_pruned_by_methods_that_choose_before_the_language_model(
    server: Server, film: bytes, own: dict[str, object]
) -> None:
    whole = ask(server, film, method="none").usage.prompt_tokens
    kept, before = (server.metric(f"eadp:visual_tokens{name}_total") for name in ("_kept", ""))
    shorter = ask(server, film, keep=0.25, **own).usage.prompt_tokens
    dropped = (server.metric("eadp:visual_tokens_total") - before) - (
        server.metric("eadp:visual_tokens_kept_total") - kept
    )
    assert dropped > 0
    assert whole - shorter == dropped
    assert server.metric("eadp:selection_failures_total") == 0


def test_wrong_settings_of_a_clip_get_status_400(server: Server, film: bytes) -> None:
    with pytest.raises(openai.BadRequestError, match="time must"):
        ask(server, film, method="eadp", time=-1)
    assert server.healthy()
