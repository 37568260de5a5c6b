"""Tests of files that hosting sites and tools read: workflows, hooks, forms, citation, changelog and package data."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from datetime import date
from pathlib import Path

import pytest
import yaml

from backend.settings import PROJECT_FOLDER
from backend.startup import project_version

GITHUB = PROJECT_FOLDER / ".github"
PYPROJECT = tomllib.loads((PROJECT_FOLDER / "pyproject.toml").read_text("utf-8"))
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))
STEPS = sorted([*WORKFLOWS, *GITHUB.glob("actions/*/action.yml")])
FORMS = sorted(set(GITHUB.glob("ISSUE_TEMPLATE/*.yml")) - {GITHUB / "ISSUE_TEMPLATE" / "config.yml"})
CHANGES = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")  # the sections of Keep a Changelog


def name(path: Path) -> str:
    return str(path.relative_to(PROJECT_FOLDER))


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text("utf-8"))


def tracked(*patterns: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=PROJECT_FOLDER, capture_output=True, text=True, check=True)
    return listed.stdout.split()


def steps(path: Path) -> list[dict]:
    found = read(path)
    return found["runs"]["steps"] if "runs" in found else [step for job in found["jobs"].values() for step in job["steps"]]


def test_there_are_workflows_for_pull_requests_every_night_and_every_week():
    commands = {path.stem: "\n".join(step.get("run", "") for step in steps(path)) for path in WORKFLOWS}
    assert re.findall(r"bash tests/run.*", commands["tests"]) == ["bash tests/run --durations=15"]
    assert "bash tests/run --full" in commands["nightly"] and "pip install --upgrade" in commands["newest"]
    matrix = read(GITHUB / "workflows" / "tests.yml")["jobs"]["default"]["strategy"]["matrix"]
    assert matrix["python"] == ["3.11", "3.12"]
    jobs = read(GITHUB / "workflows" / "newest.yml")["jobs"].values()
    assert all(job["continue-on-error"] for job in jobs)


@pytest.mark.parametrize("path", WORKFLOWS, ids=name)
def test_workflows_may_only_read_cancel_older_runs_and_end(path):
    found = read(path)
    assert found["permissions"] == {"contents": "read"} and found["concurrency"]["cancel-in-progress"] is True
    assert all(job["timeout-minutes"] <= 180 for job in found["jobs"].values())


@pytest.mark.parametrize("path", STEPS, ids=name)
def test_workflow_steps_use_actions_of_one_major_version_and_files_that_exist(path):
    for step in steps(path):
        if used := step.get("uses"):
            is_ours = used.startswith("./")
            assert (PROJECT_FOLDER / used / "action.yml").is_file() if is_ours else re.fullmatch(r"actions/[\w-]+@v\d+", used)
        for file in re.findall(r"(?<![\w/~.-])(?:tests|deploy|benchmarks)/[\w./-]+", step.get("run", "")):
            assert (PROJECT_FOLDER / file).is_file(), file
        for option in re.findall(r"bash tests/run (--\w+)(?= |$)", step.get("run", ""), re.MULTILINE):
            assert option[2:] in (PROJECT_FOLDER / "tests" / "run").read_text("utf-8") or option == "--deselect"


def test_hooks_before_a_commit_run_tools_that_the_tests_have():
    hooks = [hook for repository in read(PROJECT_FOLDER / ".pre-commit-config.yaml")["repos"] for hook in repository["hooks"]]
    assert {"ruff-check", "ruff-format", "requirements"} <= {hook["id"] for hook in hooks}
    for hook in hooks:
        program, *_ = shlex.split(hook["entry"])
        own = Path(sys.executable).parent / Path(program).name
        assert own.is_file() if program.startswith(".venv-test/bin/") else shutil.which(program), hook["entry"]


@pytest.mark.parametrize("path", FORMS, ids=name)
def test_issue_forms_ask_with_labels_and_ids(path):
    form = read(path)
    asked = [part for part in form["body"] if part["type"] != "markdown"]
    ids = [part["id"] for part in asked]
    assert form["name"] and form["description"] and len({*ids}) == len(ids) > 0
    assert all(part["attributes"]["label"] for part in asked) and any(
        part.get("validations", {}).get("required") for part in asked
    )


def test_the_citation_names_the_project_and_its_licence():
    cited = read(PROJECT_FOLDER / "CITATION.cff")
    assert cited["license"] == PYPROJECT["project"]["license"] and cited["cff-version"] == "1.2.0"
    assert [one["name"] for one in cited["authors"]] == [one["name"] for one in PYPROJECT["project"]["authors"]]
    assert "version" not in cited  # pyproject.toml states it


def test_the_changelog_has_this_version_first_and_known_sections_only():
    text = (PROJECT_FOLDER / "CHANGELOG.md").read_text("utf-8")
    releases = re.findall(r"^## \[([\d.]+)\] - (\S+)$", text, re.MULTILINE)
    assert releases[0][0] == project_version()
    days = [date.fromisoformat(day) for _, day in releases]
    assert days == sorted(days, reverse=True) and len(re.findall(r"^## (?!\[Unreleased\])", text, re.MULTILINE)) == len(releases)
    assert {*re.findall(r"^### (.+)$", text, re.MULTILINE)} <= {*CHANGES}


def test_the_version_is_stated_once():
    stated = re.compile(rf"(?<![\d.]){re.escape(project_version())}(?![\d.])")
    files = ["app.py", *tracked("wan_ui/*.py", "backend/*.py", "wan_tpu_studio/*.py", "*.cff", "docs/*.md", "README.md")]
    names = ("version", "studio")
    lines = [line for file in files for line in (PROJECT_FOLDER / file).read_text("utf-8").splitlines() if stated.search(line)]
    assert [line for line in lines if any(one in line.lower() for one in names)] == []


def test_a_wheel_has_every_file_of_the_product():
    """The lines name whole folders. For each line the wheel follows a link in a model's folder once."""
    wheel = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    wanted = [*wheel["only-include"], *wheel["force-include"]]
    folders = {path.partition("/")[0] for path in wheel["only-include"]} - {"wan_studio", "wan_tpu_studio"}
    assert wheel["sources"] == {folder: f"wan_tpu_studio/{folder}" for folder in folders}
    assert wheel["force-include"] == {file: f"wan_tpu_studio/{file}" for file in wheel["force-include"]}
    packages = ("backend", "kernels", "models", "presets", "wan_studio", "wan_tpu_studio", "wan_ui")
    files = tracked("app.py", *packages, "requirements*", "pyproject.toml")
    files = [file for file in files if file != "requirements-test.txt"]
    assert [file for file in files if not any(file == path or file.startswith(f"{path}/") for path in wanted)] == []
    models = {str(path.relative_to(PROJECT_FOLDER)) for path in (PROJECT_FOLDER / "models").iterdir() if path.is_dir()}
    assert models <= {*wanted} and all((PROJECT_FOLDER / path).exists() for path in wanted)
