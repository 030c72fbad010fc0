"""Compile loops with numba and keep them on disk, in a folder of its own for each version of numba."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numba

_config: Any = numba.config
"""Numba sets its attributes at import, from the environment."""


def cache_folder() -> Path:
    """Return the folder of the compiled loops: in NUMBA_CACHE_DIR, or else in the `__pycache__` of this package.

    Numba discards what another version has compiled. Two versions that share a folder, such as those of two
    environments with one checkout, would compile everything again whenever the other one ran. Within the folder, numba
    tells CPUs and versions of Python apart. The name also has a hash of all loops: where a loop calls one of another
    file, numba does not notice that the other file has changed. If the folder cannot be written, numba chooses one
    in the user's cache.
    """
    parent = _config.CACHE_DIR or Path(__file__).parent / "__pycache__"
    return Path(parent) / f"numba-{numba.__version__}-{_hash_of_loops()}"


@cache
def _hash_of_loops() -> str:
    sources = sorted((Path(__file__).parent / "kernels").glob("*.py"))
    return sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]


def compiled(**options: Any) -> Callable[[Any], Any]:
    """Compile a function on its first call, or read it from `cache_folder`; it releases the GIL.

    Args:
        options: Further options of `numba.njit`.
    """

    def decorate(function: Any) -> Any:
        # Numba chooses the folder when it decorates. Other users of numba in this process keep theirs.
        others = _config.CACHE_DIR
        _config.CACHE_DIR = str(cache_folder())
        try:
            return numba.njit(cache=True, nogil=True, **options)(function)
        finally:
            _config.CACHE_DIR = others

    return decorate
