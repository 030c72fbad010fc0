"""Replay golden vectors and write the table of docs/methods/parity.md: `python benchmarks/parity.py FOLDER`."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import common

from eadp import parity
from eadp.parity.vectors import load_vectors
from eadp.utils.tables import format_markdown

TESTS = common.ROOT / "tests" / "golden"


def main() -> None:
    """Compare all vectors of a folder, print the differences, and fail if there are any."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else TESTS
    outcomes = list(parity.compare_all(folder))
    in_tests = Counter(parity.TITLES[vector.method] for vector in load_vectors(TESTS))
    rows = [
        [title, release, f"{equal} of {total}", str(in_tests[title])]
        for title, release, equal, total in parity.summarize(outcomes)
    ]
    equal = sum(outcome.equal for outcome in outcomes)
    table = format_markdown(["method", "release", "vectors equal", "of these in tests/golden"], rows)
    page = common.ROOT / "docs" / "methods" / "parity.md"
    common.write_into(page, "parity", f"{equal} of {len(outcomes)} vectors are equal.\n\n{table}")
    for outcome in outcomes:
        if not outcome.equal:
            print(f"{outcome.vector.method}/{outcome.vector.case}: {'; '.join(outcome.differences)}")
    print(f"{equal} of {len(outcomes)} equal, {page.relative_to(common.ROOT)} written")
    raise SystemExit(equal < len(outcomes))


if __name__ == "__main__":
    main()
