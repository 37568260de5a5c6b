"""Tests of the files in deploy/ for containers and clouds: formats, options, paths, variables and versions. No cloud is used."""

import fnmatch
import json
import math
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from backend.chips import SLICES
from backend.cli.arguments import login_from_arguments
from backend.cli.command_line import parse
from backend.settings import DATA_VARIABLE, PROJECT_FOLDER, read_secret
from tests.test_kuberay import TOPOLOGY, containers, problems
from wan_ui.gateway.rules import ROUTES

DEPLOY = PROJECT_FOLDER / "deploy"
DOCKERFILES = ("Dockerfile", "Dockerfile.tpu")
PAGE = (PROJECT_FOLDER / "docs" / "containers.md").read_text("utf-8")
CLOUD = (DEPLOY / "gcloud.md").read_text("utf-8")
START = (DEPLOY / "start.sh").read_text("utf-8")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
GKE = {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "gke.yaml").read_text("utf-8"))}
SKYPILOT = yaml.safe_load((DEPLOY / "skypilot.yaml").read_text("utf-8"))
# The fields of these formats that are used here. Sources: compose-spec.io and docs.skypilot.co/en/latest/reference/yaml-spec.html
SERVICE_FIELDS = {
    *("image", "build", "profiles", "command", "ports", "init", "restart", "stop_grace_period", "user", "read_only", "tmpfs"),
    *("cap_drop", "security_opt", "environment", "secrets", "volumes", "network_mode", "devices", "ulimits", "shm_size"),
}
SKYPILOT_FIELDS = {
    "": {"name", "workdir", "resources", "secrets", "setup", "run"},
    "resources": {"infra", "accelerators", "accelerator_args", "use_spot"},
    "accelerator_args": {"runtime_version"},
}
UV = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
GCLOUD = shutil.which("gcloud")
NEWER = {"--request-valid-for-duration"}  # gcloud 528 of June 2025 does not have it


def instructions(name: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile and their arguments, without comments and line breaks."""
    lines = [line for line in (DEPLOY / name).read_text("utf-8").splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def values(name: str, instruction: str) -> list[str]:
    return [rest for word, rest in instructions(name) if word == instruction]


def environment(name: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in shlex.split(" ".join(values(name, "ENV"))))


def context() -> list[str]:
    """Return the tracked files that .dockerignore lets into an image."""
    lines = [line for line in (PROJECT_FOLDER / ".dockerignore").read_text("utf-8").splitlines() if not line.startswith("#")]
    assert lines[0] == "*" and lines[-1] == "**/__pycache__"
    kept = [line.removeprefix("!") for line in lines[1:-1]]
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT_FOLDER, capture_output=True, text=True, check=True).stdout
    return [file for file in tracked.split("\0") if any(fnmatch.fnmatch(file, one) or file.startswith(f"{one}/") for one in kept)]


def required(file: str) -> Iterator[str]:
    """Yield the requirements of a requirements file and of the files that it includes."""
    for line in (PROJECT_FOLDER / file).read_text("utf-8").splitlines():
        if included := re.fullmatch(r"-r (\S+)", line):
            yield from required(included[1])
        elif not line.startswith("#"):
            yield line


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_has_a_supported_python_and_the_locked_packages(name):
    supported = SpecifierSet(tomllib.loads((PROJECT_FOLDER / "pyproject.toml").read_text("utf-8"))["project"]["requires-python"])
    assert {re.fullmatch(r"python:([\d.]+)-slim( AS packages)?", image)[1] for image in values(name, "FROM")} == {"3.12"}
    assert "3.12" in supported
    packages, install = values(name, "RUN")[:2]
    assert re.search(r"uv==[\d.]+", packages)[0] in START  # the uv of start.sh
    files = re.findall(r"--requirement (\S+)", install)
    lines = [line for file in files for line in required(file)]
    assert "-c requirements.lock" in lines and all("==" in line for line in lines if not line.startswith("-c"))
    is_tpu = name == "Dockerfile.tpu"
    assert (
        any(line.startswith("libtpu==") for line in lines) is is_tpu and any(line.startswith("ray==") for line in lines) is is_tpu
    )
    assert not any("jax[" in line for line in lines) and "--torch-backend cpu" in install
    [copied] = [rest.split()[:-1] for rest in values(name, "COPY") if "requirements" in rest]
    assert all(fnmatch.filter(context(), pattern) for pattern in copied)


@pytest.mark.skipif(UV is None, reason="uv is missing: pip install uv")
@pytest.mark.parametrize("name", DOCKERFILES)
def test_uv_has_every_option_of_the_installation(name):
    for command in ("venv", "pip install"):
        used = re.findall(rf"uv {command} (.*?)(?:&&|$)", values(name, "RUN")[1])
        shown = subprocess.run([UV, *command.split(), "--help"], capture_output=True, text=True, check=True).stdout
        options = re.findall(r"--[\w-]+", used[0])
        assert options and [option for option in options if option not in shown] == []


def test_the_images_differ_only_in_their_packages():
    cpu, tpu = ([pair for pair in instructions(name) if pair[0] != "RUN"] for name in DOCKERFILES)
    assert cpu == tpu
    more = [rest for rest in values("Dockerfile.tpu", "RUN") if rest not in values("Dockerfile", "RUN")]
    assert len(more) == 2 and "requirements-tpu.txt" in more[0] and "wget" in more[1]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_runs_the_studio_without_root_and_stores_its_data_in_the_volume(name):
    [user], [volume], [port] = values(name, "USER"), values(name, "VOLUME"), values(name, "EXPOSE")
    uid, _, group = user.partition(":")
    assert uid == group and int(uid) > 0 and f"useradd --uid {uid}" in "".join(values(name, "RUN"))
    assert instructions(name)[-1][0] == "CMD"  # nothing runs as root after USER
    variables = environment(name)
    assert variables.keys() == {"PATH", "PYTHONUNBUFFERED", DATA_VARIABLE, "HF_HOME"}
    assert all(Path(variables[one]).is_relative_to(volume) for one in (DATA_VARIABLE, "HF_HOME"))
    assert json.loads(*values(name, "ENTRYPOINT")) == ["python", "app.py"] and "app.py" in context()
    arguments = parse(json.loads(*values(name, "CMD")))
    assert (arguments.command, arguments.host, arguments.port) == ("serve", "0.0.0.0", int(port))
    [check] = values(name, "HEALTHCHECK")
    assert f"http://127.0.0.1:{port}/healthz" in check and ROUTES["/healthz"] == "public"


def test_an_image_gets_the_product_and_nothing_else():
    files = context()
    folders = {file.partition("/")[0] for file in files}
    assert {"app.py", "backend", "kernels", "models", "presets", "pyproject.toml", "wan_studio", "wan_ui"} <= folders
    assert folders.isdisjoint({".git", ".github", "data", "deploy", "docs", "tests", "training"})


def test_the_studio_starts_from_the_files_of_the_image(tmp_path):
    """Start it with the image's variables, in another folder than the project. It writes to its data folder only."""
    program, home, port = tmp_path / "wan-studio", tmp_path / "home", free_port()
    for file in context():
        (program / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(PROJECT_FOLDER / file, program / file, follow_symlinks=False)
    home.mkdir()
    before = {path for path in program.rglob("*")}
    variables = {name: value.replace("/data", str(tmp_path / "data")) for name, value in environment("Dockerfile").items()}
    variables |= {"PATH": os.environ["PATH"], "HOME": str(home), "JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"}
    with (tmp_path / "log").open("w") as log:
        words = [sys.executable, "app.py", "serve", "--port", str(port)]
        process = subprocess.Popen(words, cwd=program, env=variables, stdout=log, stderr=log)
    try:
        until_healthy(port, process, 120)
    finally:
        process.send_signal(signal.SIGTERM)
    assert process.wait(60) in (0, 1), (tmp_path / "log").read_text()
    assert {path for path in program.rglob("*")} == before and list(home.rglob("*")) == []
    assert (tmp_path / "data" / "studio" / "jobs.sqlite3").is_file()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def until_healthy(port: int, process: subprocess.Popen, tries: int) -> None:
    for _ in range(tries):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
                assert answer.status == 200
                return
        except OSError:
            assert process.poll() is None, "the process has ended"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
    raise AssertionError("/healthz did not answer")


@pytest.fixture
def docker() -> str:
    """Return the command of a Docker whose daemon runs."""
    found = shutil.which("docker")
    if found is None or subprocess.run([found, "info"], capture_output=True).returncode:
        pytest.skip("no Docker daemon runs here")
    return found


@pytest.mark.slow
def test_the_image_is_built_and_starts(docker):
    name, port = f"wan-studio-test-{uuid.uuid4().hex[:8]}", free_port()
    try:
        built = [docker, "build", "--file", "deploy/Dockerfile", "--tag", name, "."]
        subprocess.run(built, cwd=PROJECT_FOLDER, check=True, timeout=3000)
        rights = ["--init", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
        words = [docker, "run", "--rm", "--name", name, *rights, "--publish", f"127.0.0.1:{port}:7860", name]
        until_healthy(port, subprocess.Popen(words), 300)
        who = subprocess.run([docker, "exec", name, "id", "-u"], capture_output=True, text=True, check=True).stdout
        assert who.strip() == "1000"
    finally:
        subprocess.run([docker, "stop", name], capture_output=True)
        subprocess.run([docker, "image", "rm", "--force", name], capture_output=True)


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_service_has_known_fields_its_dockerfile_and_few_rights(name, monkeypatch, tmp_path):
    service = COMPOSE["services"][name]
    assert {*service} - SERVICE_FIELDS == set() and {*COMPOSE} == {"name", "x-studio", "services", "secrets", "volumes"}
    folder = DEPLOY / service["build"]["context"]
    assert folder.resolve() == PROJECT_FOLDER and (folder / service["build"]["dockerfile"]).is_file()
    assert service["user"] == values(Path(service["build"]["dockerfile"]).name, "USER")[0] and service["read_only"]
    assert (
        service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"] and "privileged" not in service
    )
    assert service["volumes"] == [f"data:{values('Dockerfile', 'VOLUME')[0]}"] and "data" in COMPOSE["volumes"]
    [secret] = service["secrets"]
    assert service["environment"] == {"STUDIO_AUTH_FILE": f"/run/secrets/{secret}"} and secret in COMPOSE["secrets"]
    (tmp_path / secret).write_text("me:secret\n")
    assert read_secret("STUDIO_AUTH", {"STUDIO_AUTH_FILE": str(tmp_path / secret)}) == "me:secret"
    arguments = parse(service["command"])
    is_tpu = name == "studio-tpu"
    assert arguments.host == ("127.0.0.1" if is_tpu else "0.0.0.0")
    assert service.get("network_mode") == ("host" if is_tpu else None) and ("devices" in service) is is_tpu
    assert service.get("ports", []) == ([] if is_tpu else [f"127.0.0.1:{arguments.port}:{arguments.port}"])


@pytest.mark.parametrize("kind", ["Deployment", "Service", "PersistentVolumeClaim", "StorageClass"])
def test_kubernetes_takes_every_document_for_gke(kind):
    assert problems(GKE[kind]) == [] and problems(GKE[kind] | {"spce": {}})


def test_the_pod_on_gke_has_the_chips_of_its_slice_and_the_images_paths(monkeypatch):
    pod = GKE["Deployment"]["spec"]["template"]["spec"]
    studio = containers(GKE["Deployment"]["spec"])["studio"]
    shape = pod["nodeSelector"][TOPOLOGY]
    chips = int(studio["resources"]["limits"]["google.com/tpu"])
    assert chips == math.prod(map(int, shape.split("x"))) == SLICES["v6e"][shape]
    assert studio["resources"]["requests"]["google.com/tpu"] == str(chips)
    monkeypatch.setenv("STUDIO_AUTH", "me:secret")  # the pod sets it from the secret
    arguments = parse(studio["args"])
    assert (arguments.host, login_from_arguments(arguments)) == ("0.0.0.0", ("me", "secret"))
    [port] = GKE["Service"]["spec"]["ports"]
    assert (
        port["targetPort"] == arguments.port == studio["ports"][0]["containerPort"] == studio["readinessProbe"]["httpGet"]["port"]
    )
    assert values("Dockerfile.tpu", "VOLUME")[0] in [one["mountPath"] for one in studio["volumeMounts"]]
    assert str(pod["securityContext"]["fsGroup"]) == values("Dockerfile.tpu", "USER")[0].partition(":")[2]
    assert pod["securityContext"]["runAsNonRoot"] and studio["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    claim, disks = GKE["PersistentVolumeClaim"], GKE["StorageClass"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["storageClassName"] == disks["metadata"]["name"]
    labels = GKE["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert labels == GKE["Service"]["spec"]["selector"] == GKE["Deployment"]["spec"]["selector"]["matchLabels"]


def test_skypilot_gets_known_fields_and_the_projects_script():
    resources = SKYPILOT["resources"]
    for name, table in (("", SKYPILOT), ("resources", resources), ("accelerator_args", resources["accelerator_args"])):
        assert {*table} - SKYPILOT_FIELDS[name] == set()
    assert f"`{resources['accelerators'].removeprefix('tpu-')}`" in CLOUD
    assert f"`{resources['accelerator_args']['runtime_version']}`" in CLOUD
    assert (
        SKYPILOT["secrets"] == {"STUDIO_AUTH": None} and read_secret("STUDIO_AUTH", {"STUDIO_AUTH": "me:secret"}) == "me:secret"
    )
    for command in (SKYPILOT["setup"], SKYPILOT["run"]):
        check_start(shlex.split(command))


def check_start(words: list[str]) -> None:
    """Check a call of deploy/start.sh."""
    assert words[:2] == ["bash", "deploy/start.sh"] and f"\n{words[2]}) " in START
    assert parse(["serve", *words[3:]]).host == "127.0.0.1"


def commands(text: str) -> list[list[str]]:
    """Return the commands in a document's code blocks, as lists of words."""
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = re.sub(r"\\\n\s*", "", "".join(blocks)).splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def test_the_pages_docker_commands_use_files_and_options_that_exist():
    comments = [line.removeprefix("#   ") for name in DOCKERFILES for line in (DEPLOY / name).read_text("utf-8").splitlines()]
    used = [*commands(PAGE), *(shlex.split(line) for line in comments if line.startswith("docker "))]
    started = 0
    for words in used:
        for option, file in zip(words, words[1:], strict=False):
            assert option != "-f" or (PROJECT_FOLDER / file).is_file()
            assert option != "--profile" or file in {
                one for service in COMPOSE["services"].values() for one in service["profiles"]
            }
        image = next((place for place, word in enumerate(words) if word in ("wan-studio", "wan-studio-tpu")), None)
        if words[:2] == ["docker", "run"]:
            parse(words[image + 1 :] or ["serve"])
            started += 1
    assert started == 6


@pytest.mark.parametrize("command", [words for words in commands(CLOUD) if words[0] != "gcloud"], ids=" ".join)
def test_commands_around_googles_use_files_that_exist(command):
    program, *rest = command
    assert program in ("export", "docker")
    for file in re.findall(r"deploy/[\w.]+", " ".join(rest)):
        assert (PROJECT_FOLDER / file).is_file()


def test_the_studio_is_started_on_the_machine_by_the_projects_script():
    [inner] = [word.removeprefix("--command=") for words in commands(CLOUD) for word in words if word.startswith("--command=")]
    assert inner.startswith("cd wan-studio && ")
    check_start(shlex.split(inner.partition(" && ")[2]))


def test_every_variable_of_googles_commands_is_exported():
    exported = {word.partition("=")[0] for words in commands(CLOUD) if words[0] == "export" for word in words[1:]}
    assert {*re.findall(r"\$(\w+)", CLOUD)} == exported


@pytest.fixture(scope="module")
def gcloud_commands() -> dict[str, Any]:
    """Return the commands and options of the installed gcloud, as its completion knows them."""
    file = GCLOUD and Path(GCLOUD).resolve().parent.parent / "data/cli/gcloud_completions.py"
    if not file or not file.is_file():
        pytest.skip("gcloud is missing")
    found: dict[str, Any] = {}
    exec(compile(file.read_text("utf-8"), str(file), "exec"), found)
    return found["STATIC_COMPLETION_CLI_TREE"]


def options_of(tree: dict[str, Any], words: list[str]) -> set[str]:
    """Return the options of the command of gcloud that these words begin with."""
    known = {*tree["flags"]}
    for word in words:
        if word not in tree["commands"]:
            break
        tree = tree["commands"][word]
        known |= {*tree["flags"]}
    assert not tree["commands"], f"{words} names no command"
    return known


def test_gcloud_has_every_command_and_option(gcloud_commands):
    """An option may also be in the early tracks, because the installed gcloud can be older than the page."""
    used = [words[1 : words.index("--") if "--" in words else None] for words in commands(CLOUD) if words[0] == "gcloud"]
    assert len(used) > 15
    for words in used:
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        early = set() if words[0] == "alpha" else options_of(gcloud_commands, ["alpha", *words])
        assert given - options_of(gcloud_commands, words) - early - NEWER == set(), words


def test_prices_have_a_date_and_sources_and_the_commands_are_said_to_be_untried():
    prices = CLOUD.partition("## Prices")[2].partition("\n## ")[0]
    assert re.search(r"as read on 20\d\d-\d\d-\d\d", prices)
    cited = {*re.findall(r"\((\d)\)", prices.partition("Sources:")[0])}
    assert cited == {*re.findall(r"\((\d)\)", prices.partition("Sources:")[2])} and len(cited) > 1
    assert "None of them was tried" in CLOUD and "No container was started" in PAGE
    for text, folder in ((CLOUD, DEPLOY), (PAGE, PROJECT_FOLDER / "docs")):
        links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
        assert links and [link for link in links if not (folder / link).exists()] == []


def test_every_file_for_containers_is_on_the_page():
    files = {path.name for path in DEPLOY.iterdir() if re.search(r"Dockerfile|\.yaml$|\.md$", path.name)}
    assert {file for file in files if f"deploy/{file}" not in PAGE} == set()
