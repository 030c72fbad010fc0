"""Helpers of several tests: tiny models, reference implementations, prompts and simple methods."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
GOLDEN = TESTS / "golden"
