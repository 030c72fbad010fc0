"""Time by part, on a clock that ticks by hand; multiply-adds and tensors alive, counted by hand."""

import pytest
import torch

from eadp.core.trace import listening, part
from eadp.measure.op_counts import count_operations
from eadp.measure.stopwatch import PARTS, Clock, Stopwatch, clock


class Hand:
    def __init__(self):
        self.now = 0.0

    def watch(self):
        return Stopwatch(Clock("hand", lambda: self.now, lambda start, end: end - start))


def test_a_part_within_a_part_is_counted_once():
    hand = Hand()
    watch = hand.watch()
    with listening(watch):
        hand.now += 1
        with part("compaction"):
            hand.now += 2
            with part("selection"):
                hand.now += 4
            hand.now += 8
        hand.now += 16
    watch.stop()
    times = {name: ms for name, ms in watch.parts().items() if ms}
    assert times == {"rest": 17, "compaction": 10, "selection": 4}
    assert watch.total == sum(watch.parts().values()) == 31


def test_what_comes_after_the_stop_is_not_counted():
    hand = Hand()
    watch = hand.watch()
    with listening(watch), part("language model"):
        hand.now += 1
        watch.stop()
        with part("selection"):
            hand.now += 5
    assert watch.parts()["language model"] == watch.total == 1
    assert set(watch.parts()) == set(PARTS)


def test_a_part_ends_with_an_exception_too():
    hand = Hand()
    watch = hand.watch()

    @part("selection")
    def fail():
        hand.now += 1
        raise KeyError

    with listening(watch), pytest.raises(KeyError):
        fail()
    hand.now += 2
    watch.stop()
    assert watch.parts()["selection"] == 1
    assert watch.parts()["rest"] == 2


def test_nobody_has_to_listen():
    @part("similarity")
    def double(x):
        return 2 * x

    assert double(3) == 6
    assert double.__name__ == "double"


@pytest.mark.parametrize(("name", "device"), [("sundial", "cpu"), ("cpu", "cuda"), ("wall", "mps")])
def test_a_clock_that_cannot_tell_is_refused(name, device):
    with pytest.raises(ValueError, match=r"wall|cuda"):
        clock(name, torch.device(device))


def test_multiply_adds_and_peak_by_hand():
    weight = torch.zeros(30, 20)

    def run():
        x = torch.ones(10, 30)  # 1,200 bytes
        y = x @ weight  # 800 more, 10·30·20 multiply-adds
        del x
        return y + 1  # 800 more, where 1,200 are gone

    found = count_operations(run)
    assert found.multiply_adds == 6000
    assert found.peak_bytes == 2000


def test_attention_is_counted_on_the_cpu_too():
    q, k = torch.zeros(1, 2, 7, 8), torch.zeros(1, 2, 11, 8)
    found = count_operations(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, k))
    assert found.multiply_adds == 2 * (2 * 7 * 11 * 8)
