"""Suites: the paper's benchmarks, run with one command by the harness tasks that measure them."""

from eadp.evaluate.suites.harness import has_judge
from eadp.evaluate.suites.plan import SuitePlan, find_paper_table, plan_specs
from eadp.evaluate.suites.runner import SuiteResult, run_suite
from eadp.evaluate.suites.suite import SUITE_NAMES, Benchmark, Suite, load_suite

__all__ = [
    "SUITE_NAMES",
    "Benchmark",
    "Suite",
    "SuitePlan",
    "SuiteResult",
    "find_paper_table",
    "has_judge",
    "load_suite",
    "plan_specs",
    "run_suite",
]
