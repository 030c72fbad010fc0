"""Time by part on a manual clock; multiply-adds and peak memory compared with a count by hand."""

import pytest
import torch

from eadp.core.trace import listening, part
from eadp.measure.op_counts import count_operations
from eadp.measure.stopwatch import PARTS, Clock, Stopwatch, make_clock


class ManualClock:
    def __init__(self):
        self.now = 0.0

    def start_stopwatch(self):
        return Stopwatch(Clock("manual", lambda: self.now, lambda start, end: end - start))


def test_a_part_within_a_part_is_counted_once():
    clock = ManualClock()
    watch = clock.start_stopwatch()
    with listening(watch):
        clock.now += 1
        with part("compaction"):
            clock.now += 2
            with part("selection"):
                clock.now += 4
            clock.now += 8
        clock.now += 16
    watch.stop()
    times = {name: ms for name, ms in watch.parts().items() if ms}
    assert times == {"rest": 17, "compaction": 10, "selection": 4}
    assert watch.total == sum(watch.parts().values()) == 31


def test_time_after_stop_is_not_counted():
    clock = ManualClock()
    watch = clock.start_stopwatch()
    with listening(watch), part("language model"):
        clock.now += 1
        watch.stop()
        with part("selection"):
            clock.now += 5
    assert watch.parts()["language model"] == watch.total == 1
    assert set(watch.parts()) == set(PARTS)


def test_a_part_ends_when_an_exception_is_raised():
    clock = ManualClock()
    watch = clock.start_stopwatch()

    @part("selection")
    def fail():
        clock.now += 1
        raise KeyError

    with listening(watch), pytest.raises(KeyError):
        fail()
    clock.now += 2
    watch.stop()
    assert watch.parts()["selection"] == 1
    assert watch.parts()["rest"] == 2


def test_a_part_works_without_a_listener():
    @part("similarity")
    def double(x):
        return 2 * x

    assert double(3) == 6
    assert double.__name__ == "double"


@pytest.mark.parametrize(("name", "device"), [("sundial", "cpu"), ("cpu", "cuda"), ("wall", "mps")])
def test_a_clock_that_cannot_measure_a_device_is_an_error(name, device):
    with pytest.raises(ValueError, match=r"wall|cuda"):
        make_clock(name, torch.device(device))


def test_multiply_adds_and_peak_bytes_of_a_small_computation():
    weight = torch.zeros(30, 20)

    def run():
        x = torch.ones(10, 30)  # 1,200 bytes
        y = x @ weight  # 800 more, 10·30·20 multiply-adds
        del x
        return y + 1  # 800 more, after 1,200 were freed

    found = count_operations(run)
    assert found.multiply_adds == 6000
    assert found.peak_bytes == 2000


def test_fused_attention_on_the_cpu_is_counted():
    q, k = torch.zeros(1, 2, 7, 8), torch.zeros(1, 2, 11, 8)
    found = count_operations(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, k))
    assert found.multiply_adds == 2 * (2 * 7 * 11 * 8)
