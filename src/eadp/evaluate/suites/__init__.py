"""The paper's benchmarks, each by the harness task that measures it, run with one command."""

from eadp.evaluate.suites.harness import judge
from eadp.evaluate.suites.plan import Plan, paper_of, settings
from eadp.evaluate.suites.runner import Ran, run
from eadp.evaluate.suites.suite import NAMES, Benchmark, Suite, load

__all__ = ["NAMES", "Benchmark", "Plan", "Ran", "Suite", "judge", "load", "paper_of", "run", "settings"]
