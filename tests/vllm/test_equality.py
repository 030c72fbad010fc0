"""Greedy answers of vLLM with the plugin equal those of transformers with `eadp.attach`, token for token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from checkpoints import FAMILIES, LLAVA_VIDEO, folder_of, settings_of
from engines import Engine, Query, Transformers, clip, random_image, random_question

from eadp.methods import NoPruning, get_method_class
from eadp.pocket.samples import samples
from eadp.serve.request import ServerSettings

SERVER = {"keep": 0.125}
CHUNK = 96
"""Tokens per step of the engine: fewer than an unpruned image has in most families."""
LARGE_CHUNK = 544
"""The same for LLaVA-OneVision. vLLM rejects an image that has more tokens than a chunk and than its estimate of the
largest image, and this estimate is wrong for the crops of the tiny model."""
OWN = {
    "prumerge": {"layer": -2},
    "fastvid": {"layer": -2, "exact": True},
    "flashvid": {"layer": -2, "exact": True, "expansion": 1.0},
    "holitom": {"layer": -2, "exact": True, "newlines": "all"},
    "vispruner": {"ratio": 1.0},
    **{name: {"exact": True} for name in ("trim", "hiprune", "mmtok", "scope", "evs", "vidcom2", "vcast")},
}
"""Required settings of methods: the last layer of most towers is not run, and a server keeps an exact count. It cannot
keep only the newlines of rows that keep a token. VisPruner's rounds of removing similar tokens depend on the order of
cosines that differ by less than the towers of the two engines do, so only its tokens of high attention are compared."""
BUDGETS = {"full": 1.0, "half": 0.5, "eighth": 0.125}


class Pair:
    """Both engines on one checkpoint."""

    def __init__(self, name: str, folder: object) -> None:
        self.name = name
        own = settings_of(name, folder)
        self.chunk = LARGE_CHUNK if own else CHUNK
        self.reference = Transformers(folder, **own)
        self.engine = Engine(folder, SERVER | own, max_num_batched_tokens=self.chunk, max_num_seqs=8)

    @property
    def available_methods(self) -> list[str]:
        """The methods that the server can run and that take a budget."""
        config = self.reference.model.config
        config.eadp = SERVER
        return [
            name
            for name in ServerSettings.from_config(config, self.positions).available_methods
            if name != NoPruning.name
        ]

    @property
    def positions(self) -> tuple[str, ...]:
        """The position modes that the engine supports."""
        return ("renumber", "keep") if self.reference.positions is None else ("renumber",)

    def wide(self, seed: int) -> object:
        return random_image(seed, 96, 56)

    def different(self, queries: Iterable[Query]) -> tuple[Query, Query]:
        """Return the first prompt, and the next one for which transformers keeps other tokens."""
        first, *others = queries
        kept = self.reference.answer(first, SERVER)[1]
        return first, next(query for query in others if self.reference.answer(query, SERVER)[1] != kept)

    def check(self, *queries: Query) -> tuple[list, list]:
        """Check that prompts sent at once get the answers that transformers gives to each one. Return both results."""
        expected = [self.reference.answer(query, SERVER) for query in queries]
        found = self.engine.answers([self.reference.prompt(query) for query in queries], queries)
        assert [output.outputs[0].token_ids for output in found] == [tokens for tokens, _, _ in expected]
        assert [len(output.prompt_token_ids) for output in found] == [length for _, _, length in expected]
        return expected, found


@pytest.fixture(scope="module", params=["pocket", *FAMILIES])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    both = Pair(request.param, folder_of(request.param, tmp_path_factory.mktemp("checkpoints")))
    yield both
    both.engine.close()


@pytest.mark.parametrize("keep", BUDGETS.values(), ids=BUDGETS)
def test_cold_and_on_a_prefix_hit(pair: Pair, keep: float) -> None:
    query = Query((pair.wide(1),), (random_question(1),), {"keep": keep})
    _, (cold,) = pair.check(query)
    _, (warm,) = pair.check(query)
    assert not cold.num_cached_tokens
    assert warm.num_cached_tokens


def test_a_request_without_settings_gets_those_of_the_server(pair: Pair) -> None:
    ((_, (kept,), _),), _ = pair.check(Query((pair.wide(2),), (random_question(2),)))
    ((_, (more,), _),), _ = pair.check(Query((pair.wide(2),), (random_question(2),), {"keep": 0.5}))
    assert len(kept) < len(more)


def test_two_questions_about_one_image_get_their_own_tokens(pair: Pair) -> None:
    """The question is part of the cache keys; otherwise the second question would get the tokens of the first."""
    first, second = pair.different(
        Query((pair.wide(3),), (random_question(seed),), {"keep": 0.25}) for seed in range(20, 40)
    )
    (one,), _ = pair.check(first)
    pair.check(second)
    (again,), _ = pair.check(first)
    assert again == one


def test_an_image_without_a_question(pair: Pair) -> None:
    pair.check(Query((pair.wide(41),), ("",), {"keep": 0.25}))


def test_a_question_in_the_settings_overrides_that_of_the_prompt(pair: Pair) -> None:
    pruned = {"keep": 0.25}
    queries = [
        Query((pair.wide(5),), (random_question(5),), pruned | {"question": random_question(seed)})
        for seed in range(40, 60)
    ]
    pair.check(*pair.different([Query((pair.wide(5),), (random_question(5),), pruned), *queries]))


def test_many_budgets_and_methods_in_one_batch(pair: Pair) -> None:
    queries = [Query((pair.wide(7),), (random_question(7),), {"keep": keep}) for keep in BUDGETS.values()]
    queries += [
        Query((pair.wide(8),), (random_question(8),), {"keep": 3, "method": name, **OWN.get(name, {})})
        for name in pair.available_methods
    ]
    pair.check(*queries)


def test_presets_of_eadp(pair: Pair) -> None:
    queries = [
        Query((pair.wide(21),), (random_question(21),), {"keep": 0.25, "preset": name})
        for name in ("paper", "published")
    ]
    pair.check(*queries)


def test_positions_and_newlines_of_a_request(pair: Pair) -> None:
    image = (pair.wide(22),)
    queries = [Query(image, (random_question(22),), {"keep": 0.25, "positions": each}) for each in pair.positions]
    queries += [Query(image, (random_question(22),), {"keep": 0.25, "newlines": each}) for each in ("none", "all")]
    pair.check(
        *queries,
        Query((pair.wide(23), random_image(24, 40, 72)), (random_question(23),), {"keep": 0.25, "method": "divprune"}),
    )


def test_methods_that_use_the_attention_of_the_tower(pair: Pair) -> None:
    """Several methods on the same images in one batch do not mix up the attention of the tower."""
    by_attention = [name for name in pair.available_methods if "vision_attention" in get_method_class(name).needs]
    assert set(by_attention) == {
        *("visionzip", "hiprune", "prumerge", "scope", "vispruner", "fastvid", "flashvid", "holitom"),
    }
    images = (pair.wide(17), random_image(18, 40, 104))

    def queries_with(method: str) -> list[Query]:
        own = {"keep": 0.25, "method": method, **OWN.get(method, {})}
        return [Query((image,), (random_question(17),), own) for image in images]

    queries = [query for method in ("eadp", *by_attention) for query in queries_with(method)]
    expected, _ = pair.check(*queries, Query(images, (random_question(18),), {"keep": 0.25}))
    # Not the evenly spread tokens that are kept if a method fails.
    even = [pair.reference.answer(query, SERVER)[0] for query in queries_with("uniform")]
    answers = [tokens for tokens, _, _ in expected]
    assert all(answers[start : start + len(images)] != even for start in range(0, len(queries), len(images)))


def test_a_chunk_may_end_inside_an_image(pair: Pair) -> None:
    query = Query((pair.wide(9), pair.wide(10)), (random_question(9) * 2,), {"keep": 1.0})
    _, (found,) = pair.check(query)
    assert len(found.prompt_token_ids) > pair.chunk
    pruned = Query(query.images, (random_question(10) * 3,), {"keep": 0.75})
    _, (found,) = pair.check(pruned)
    assert len(found.prompt_token_ids) > pair.chunk


def test_a_portrait_image(pair: Pair) -> None:
    pair.check(Query((random_image(11, 40, 104),), (random_question(11),), {"keep": 0.5}))


def test_an_image_whose_joined_crops_are_scaled_down(pair: Pair) -> None:
    """LLaVA-OneVision limits the tokens of the joined crops."""
    queries = [Query((random_image(25, 112, 112),), (random_question(25),), {"keep": keep}) for keep in (0.5, 40)]
    own = {"keep": 0.25, "method": "visionzip"}
    pair.check(*queries, Query((random_image(25, 112, 112),), (random_question(25),), own | {"newlines": "all"}))


def test_two_images_each_with_a_budget(pair: Pair) -> None:
    ((_, kept, _),), _ = pair.check(
        Query((pair.wide(12), random_image(13, 40, 72)), (random_question(12),), {"keep": 5})
    )
    assert [len(each) for each in kept] == [5, 5]


def test_several_turns(pair: Pair) -> None:
    """The question is the last user turn."""
    query = Query((pair.wide(14),), (random_question(14),), {"keep": 0.25})
    pair.check(query)
    (then,), _ = pair.check(Query(query.images, (random_question(14), "some answer", random_question(15)), query.eadp))
    (last,), _ = pair.check(Query(query.images, (random_question(15),), query.eadp))
    assert then[1] == last[1]


def test_a_budget_above_the_token_count_keeps_all(pair: Pair) -> None:
    pair.check(Query((pair.wide(16),), (random_question(16),), {"keep": 5000}))


@pytest.mark.parametrize("pair", ["pocket"], indirect=True)
def test_the_pocket_model_on_its_own_samples(pair: Pair) -> None:
    queries = [Query((sample.image,), (sample.question,), {"keep": 32}) for sample in samples("test", 12)]
    pair.check(*queries)


with_clips = pytest.mark.parametrize("pair", ["llava_onevision", LLAVA_VIDEO, "qwen2_5_vl", "qwen3_vl"], indirect=True)


@with_clips
@pytest.mark.parametrize("keep", BUDGETS.values(), ids=BUDGETS)
def test_a_clip_cold_and_on_a_prefix_hit(pair: Pair, keep: float) -> None:
    query = Query((), (random_question(31) * 2,), {"keep": keep}, clips=(clip(31, 4),))
    _, (cold,) = pair.check(query)
    _, (warm,) = pair.check(query)
    assert not cold.num_cached_tokens
    assert warm.num_cached_tokens


@with_clips
def test_methods_presets_and_newlines_on_clips(pair: Pair) -> None:
    """Several clips of different lengths in one batch."""
    clips, question = (clip(32, 3),), (random_question(32),)
    own = [{"preset": name} for name in ("paper", "published")] + [{"newlines": each} for each in ("none", "all")]
    own += [{"method": name, **OWN.get(name, {})} for name in pair.available_methods]
    queries = [Query((), question, {"keep": 0.25, **each}, clips) for each in own]
    expected, _ = pair.check(*queries, Query((), question, {"keep": 0.25, "preset": "published"}, clips=(clip(33, 5),)))
    answers = dict(zip(pair.available_methods, [(tokens, kept) for tokens, kept, _ in expected[4:-1]], strict=True))
    # Not the evenly spread tokens that are kept if a method fails.
    assert all(answers[name] != answers["uniform"] for name in answers if name != "uniform")


@with_clips
def test_a_clip_whose_times_are_larger_than_the_positions_after_it(pair: Pair) -> None:
    """In transformers, the answer continues the positions of the text after the clip, not the largest position."""
    pair.check(Query((), ("ab?",), {"keep": 0.5}, clips=(clip(38, 6),), frames_per_second=0.05))


@with_clips
def test_two_questions_about_one_clip_get_their_own_tokens(pair: Pair) -> None:
    pair.check(
        *pair.different(Query((), (random_question(seed),), {"keep": 0.25}, (clip(34, 3),)) for seed in range(20, 40))
    )


@with_clips
def test_two_clips_and_an_image_each_with_a_budget(pair: Pair) -> None:
    queries = [
        Query((), (random_question(35),), {"keep": 7}, clips=(clip(35, 3), clip(36, 3))),
        Query((pair.wide(37),), (random_question(35),), {"keep": 7}, clips=(clip(35, 3),)),
    ]
    expected, _ = pair.check(*queries)
    assert [len(kept) for _, each, _ in expected for kept in each] == [7, 7, 7, 7]
