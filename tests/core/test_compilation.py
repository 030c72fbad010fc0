"""The cache of compiled loops: one folder per version of numba, and a warm-up that fills it."""

import os
import re
import subprocess
import sys
import textwrap

import numba
import pytest

from eadp.core import compilation, kernels


def test_each_version_of_numba_has_its_own_folder(monkeypatch, tmp_path):
    assert compilation.cache_folder().parent.name == "__pycache__"
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    here = compilation.cache_folder()
    monkeypatch.setattr(numba, "__version__", "0.99.0")
    assert here.parent == compilation.cache_folder().parent == tmp_path
    assert here != compilation.cache_folder()
    function = compilation.compiled()(_add_one)
    assert function(1) == 2
    assert function.stats.cache_path.startswith(str(tmp_path / "numba-0.99.0"))
    assert str(tmp_path) == numba.config.CACHE_DIR


def _add_one(x):
    return x + 1


def test_the_loops_of_the_package_are_kept_in_that_folder():
    assert kernels.facility_greedy.stats.cache_path.startswith(str(compilation.cache_folder()))


@pytest.mark.slow
def test_warmup_compiles_everything_once(tmp_path):
    """A second process reads what the first one compiled, and a selection in it compiles nothing."""
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def run(code):
        done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
        return done.stdout

    command = "from eadp.cli import app; app(['warmup'])"
    first = re.search(r"compiled (\d+) loops, read 0 from the cache: (.*)", run(command))
    assert int(first[1]) > 10
    assert first[2].startswith(str(tmp_path / f"numba-{numba.__version__}"))
    assert re.search(r"compiled 0 loops, read [1-9]\d* from", run(command))
    selection = """
        import torch
        from eadp import core
        from eadp.core.kernels import diversity, facility, scan, temporal
        features, weights = torch.randn(20, 8), torch.rand(20)
        core.facility_location_by_quota(features, weights, [slice(0, 20)], [5])
        core.facility_location_by_coverage(features, weights, [slice(0, 9), slice(9, 20)], 0.5)
        core.facility_location(core.token_similarity(features.double()), weights, 5)
        core.facility_location_over_time(features, weights, 5, 2, 7)
        core.dpp_by_quota(features, weights, [slice(0, 20)], [5])
        core.max_min_by_quota(features, [slice(0, 20)], [5])
        loops = [each for module in (diversity, facility, scan, temporal) for each in vars(module).values()]
        print([each for each in loops if hasattr(each, "stats") and each.stats.cache_misses])
    """
    assert run(textwrap.dedent(selection)).strip() == "[]"
