"""The container files of deploy/, read as data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "deploy"


def documents(name: str) -> list[dict[str, Any]]:
    """Return the documents of a YAML file."""
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def dockerfile() -> dict[str, list[str]]:
    """Return the arguments of the Dockerfile's instructions, continued lines joined, by the name of the instruction."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", (FOLDER / "Dockerfile").read_text(), flags=re.MULTILINE))
    found: dict[str, list[str]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        instruction, _, arguments = line.partition(" ")
        found.setdefault(instruction, []).append(arguments.strip())
    return found


def command_lines() -> dict[str, list[str]]:
    """Return the arguments that each file gives to `eadp serve`."""
    (compose,) = documents("compose.yaml")
    deployment = next(each for each in documents("kubernetes.yaml") if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {
        "Dockerfile": json.loads(dockerfile()["CMD"][0]),
        "compose.yaml": compose["services"]["eadp"]["command"],
        "kubernetes.yaml": container["args"],
    }
