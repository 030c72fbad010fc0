"""Build the sdist and the wheel, check both, and run the demo from the wheel in a clean environment.

The environment is outside the checkout and named by the hash of its pins. It is made once; only eadp is reinstalled.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packaging.metadata import Metadata

CHECKOUT = Path(__file__).resolve().parent
DIST, CONSTRAINTS = CHECKOUT / "dist", CHECKOUT / "constraints.txt"
NOT_PACKAGED = {"tests", "benchmarks", "docs", "examples", "hosts", "notebooks", "scripts", "training"}
LOADED_FILES = """
import sys, eadp.cli, eadp.demo
print(eadp.__file__, *{str(getattr(module, "__file__", "")) for module in sys.modules.values()}, sep="\\n")
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        source, demo_folder = Path(scratch, "source"), Path(scratch, "demo")
        copy_committable_files(source)
        sdist, wheel = build(source)
        check_sdist(sdist)
        metadata = check_wheel(wheel, source)
        print("contents and metadata are correct", flush=True)
        demo_folder.mkdir()
        with clean_environment(wheel, metadata) as environment:
            run_demo(environment, demo_folder)


def copy_committable_files(target: Path) -> None:
    """Copy the files that git tracks or would add.

    A copy without earlier builds is needed because setuptools packs every file that eadp.egg-info lists.
    """
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (CHECKOUT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, target / name)


def build(source: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from the sdist, and return their paths."""
    shutil.rmtree(DIST, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--outdir", str(DIST), str(source)]
    # This pins setuptools in the isolated environment of the build.
    pinned = {**os.environ, "PIP_CONSTRAINT": str(CONSTRAINTS)}
    done = subprocess.run(command, env=pinned, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"the build failed:\n{done.stdout.decode()}")
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    for file in (sdist, wheel):
        print(f"built {file.relative_to(CHECKOUT)}, {file.stat().st_size / 1e6:.1f} MB", flush=True)
    return sdist, wheel


def check_sdist(sdist: Path) -> None:
    """Exit if the sdist contains folders that users do not need."""
    with tarfile.open(sdist) as archive:
        names = {Path(name).relative_to(Path(name).parts[0]) for name in archive.getnames()}
    folders = {name.parts[0] for name in names if name.parts}
    if found := sorted(folders & NOT_PACKAGED):
        sys.exit(f"{sdist.name} contains {', '.join(found)}: exclude them in MANIFEST.in")


def check_wheel(wheel: Path, source: Path) -> Metadata:
    """Exit unless the wheel contains exactly the files of the package and valid metadata; return the metadata."""
    (version,) = source.glob("**/eadp/_version.py")
    root = version.parents[1]
    expected = {path.relative_to(root).as_posix() for path in version.parent.rglob("*") if path.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (described,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = Metadata.from_email(archive.read(described), validate=True)
    packed = {name for name in names if ".dist-info/" not in name}
    if missing := sorted(expected - packed):
        sys.exit(f"{wheel.name} lacks {shorten(missing)}: add them to package-data in pyproject.toml")
    if foreign := sorted(packed - expected):
        sys.exit(f"{wheel.name} contains files that are not in the package: {shorten(foreign)}")
    return metadata


@contextmanager
def clean_environment(wheel: Path, metadata: Metadata) -> Iterator[Path]:
    """Yield an environment with only the wheel and its dependencies. It is locked while in use."""
    pins = "\n".join([sys.version, CONSTRAINTS.read_text(), *map(str, metadata.requires_dist or [])])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "eadp")
    environment = cache / f"wheel-{hashlib.sha256(pins.encode()).hexdigest()[:16]}"
    if environment.is_relative_to(CHECKOUT):
        sys.exit(f"{environment} is inside the checkout: set XDG_CACHE_HOME to a folder outside it")
    cache.mkdir(parents=True, exist_ok=True)
    with open(f"{environment}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pip = [environment / "bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
        if not (environment / "ready").exists():
            print(f"making {environment}", flush=True)
            shutil.rmtree(environment, ignore_errors=True)
            run([sys.executable, "-m", "venv", environment])
            # torch first, with its pin: without one, pip would install gigabytes of CUDA libraries.
            run([*pip, "install", "-c", CONSTRAINTS, "torch"])
            run([*pip, "install", "-c", CONSTRAINTS, wheel])
            (environment / "ready").touch()
        run([*pip, "install", "--no-deps", "--force-reinstall", wheel])
        run([*pip, "check"])
        yield environment


def run_demo(environment: Path, folder: Path) -> None:
    """Run `eadp demo` in its own folder, and exit if it imports anything from the checkout."""
    run([environment / "bin/eadp", "demo"], cwd=folder)
    if not (folder / "out/demo.png").is_file():
        sys.exit("`eadp demo` drew no out/demo.png")
    listing = run([environment / "bin/python", "-c", LOADED_FILES], cwd=folder, stdout=subprocess.PIPE)
    package, *files = map(Path, listing.splitlines())
    if not package.is_relative_to(environment):
        sys.exit(f"eadp was imported from {package}, not from {environment}")
    if foreign := sorted(str(file) for file in files if file.is_relative_to(CHECKOUT)):
        sys.exit(f"the installed eadp imports files of the checkout: {shorten(foreign)}")
    print(f"`eadp demo` ran from {package.parent}")


def shorten(names: list[str], limit: int = 5) -> str:
    """List at most `limit` names, and how many more there are."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def run(command: list[str | Path], cwd: Path | None = None, stdout: int | None = None) -> str:
    """Run a command without the variables that would make Python import other packages; return its output."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env={**clean, "HF_HUB_OFFLINE": "1"}, stdout=stdout, text=True)
    if done.returncode:
        sys.exit(f"failed with status {done.returncode}: {' '.join(map(str, command))}")
    return done.stdout or ""


if __name__ == "__main__":
    main()
