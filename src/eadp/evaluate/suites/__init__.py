"""The paper's benchmarks, each by the harness task that measures it, run with one command."""

from eadp.evaluate.suites.harness import judge
from eadp.evaluate.suites.plan import SuitePlan, paper_of, plan_specs
from eadp.evaluate.suites.runner import SuiteResult, run
from eadp.evaluate.suites.suite import NAMES, Benchmark, Suite, load

__all__ = ["NAMES", "Benchmark", "Suite", "SuitePlan", "SuiteResult", "judge", "load", "paper_of", "plan_specs", "run"]
