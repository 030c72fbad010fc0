"""The paper's benchmarks, each by the harness task that measures it, run with one command."""

from eadp.evaluate.suites.runner import Plan, Ran, run
from eadp.evaluate.suites.suite import NAMES, Benchmark, Suite, load

__all__ = ["NAMES", "Benchmark", "Plan", "Ran", "Suite", "load", "run"]
