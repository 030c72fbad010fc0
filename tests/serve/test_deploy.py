"""The container files of deploy/, as far as they can be checked without a container engine."""

from __future__ import annotations

import re
import shlex

import pytest
from helpers.deployments import FOLDER, command_lines, dockerfile, documents
from typer.testing import CliRunner

from eadp import __version__
from eadp.cli import app
from eadp.serve.versions import TESTED_VERSIONS

FILES = ("Dockerfile", "compose.yaml", "kubernetes.yaml")


def test_all_container_files_are_known() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
def test_eadp_serve_accepts_the_command_line(name: str) -> None:
    """With the pocket model in place of the mounted checkpoint, and the options of vLLM as they are."""
    _, *options = command_lines()[name]
    assert all(isinstance(option, str) for option in options)
    guide = options[options.index("--set") + 1]
    assert guide.startswith("guide=/models/")
    result = CliRunner().invoke(app, ["serve", "pocket", *options, "--dry-run"])
    assert result.exit_code == 0, result.output
    line = shlex.split(result.output)
    assert line[0] == "python"
    assert line[line.index("--allowed-media-domains") + 1].endswith(".invalid")


@pytest.mark.parametrize("name", FILES)
def test_servers_in_containers_have_a_key_and_fetch_nothing(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert "--trust" not in text
    assert "--allowed-media-domains" in text
    if name != "Dockerfile":
        assert "VLLM_API_KEY" in text
    assert not re.search(r"api-key\s*[:=]\s*['\"]?\w{8,}", text.replace("api-key=…", ""))


def test_the_image_pins_the_newest_tested_vllm_and_runs_as_a_user() -> None:
    found = dockerfile()
    assert found["FROM"] == [f"vllm/vllm-openai:v{TESTED_VERSIONS[-1]}"]
    assert f'"vllm=={TESTED_VERSIONS[-1]}"' in found["RUN"][0]
    assert found["USER"] == ["1000"]
    assert list(found).index("USER") < list(found).index("ENTRYPOINT")
    assert found["ENTRYPOINT"] == ['["eadp", "serve"]']


def test_all_files_name_the_same_image_and_version() -> None:
    images = re.findall(r"eadp:([\d.]+)", "".join((FOLDER / name).read_text() for name in FILES))
    assert len(images) >= 3
    assert set(images) == {__version__.split("+")[0].split(".dev")[0]}


def test_the_service_finds_the_pods_and_waits_until_they_are_healthy() -> None:
    kinds = {each["kind"]: each for each in documents("kubernetes.yaml")}
    assert set(kinds) == {"Deployment", "Service", "NetworkPolicy"}
    pod = kinds["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    labels = pod["metadata"]["labels"]
    assert kinds["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert kinds["Service"]["spec"]["selector"] == labels
    assert kinds["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    arguments = container["args"]
    assert ports[kinds["Service"]["spec"]["ports"][0]["targetPort"]] == int(arguments[arguments.index("--port") + 1])
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "http"}
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    assert kinds["NetworkPolicy"]["spec"]["egress"] == []


def test_compose_listens_on_this_machine_only_and_needs_a_key() -> None:
    (compose,) = documents("compose.yaml")
    service = compose["services"]["eadp"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["environment"]["VLLM_API_KEY"].startswith("${VLLM_API_KEY:?")
    assert all(volume.endswith(":ro") for volume in service["volumes"])
