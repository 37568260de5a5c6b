"""A helper is any program. Its failures are reported in one sentence."""

import asyncio
import sys

import pytest

from backend.errors import StudioError
from backend.prompt_rewriting.helper import stream_suggestions
from backend.prompt_rewriting.program import Program
from backend.prompt_rewriting.request import RewriteRequest
from presets import load_preset


def program(code: str) -> Program:
    return Program(command=(sys.executable, "-c", code))


def asked(prompt: str = "x") -> RewriteRequest:
    return RewriteRequest(prompt=prompt, preset=load_preset("wan-tiny"), seconds=1.0625)


def all_suggestions(helper: Program, asked: RewriteRequest, **limits: float) -> list[str]:
    async def collect() -> list[str]:
        return [one async for one in stream_suggestions(helper, asked, **limits)]

    return asyncio.run(collect())


def test_it_is_given_prompt_preset_and_instructions():
    code = (
        "import json, sys; given = json.load(sys.stdin)\n"
        "print(given['preset'], given['seconds'], 'shape' in given['instructions'], given['prompt'].upper())"
    )
    found = all_suggestions(program(code), asked("ein Kreis; $(rm -rf) 圆"))
    assert found[-1] == "wan-tiny 1.0625 False EIN KREIS; $(RM -RF) 圆", "the instructions are Chinese, as the prompt is in part"


WAITING = """
import pathlib, sys, time
for word in ("a", " red", " circle"):
    print(word, end="", flush=True)
    while not pathlib.Path(sys.argv[1], word.strip()).exists():
        time.sleep(0.01)
"""
"""A program that writes each word after the previous word was shown."""


def test_it_is_shown_as_it_is_written(tmp_path):
    helper = Program(command=(sys.executable, "-c", WAITING, str(tmp_path)))

    async def collect() -> list[str]:
        shown = []
        async for text in stream_suggestions(helper, asked()):
            shown.append(text)
            (tmp_path / text.split()[-1]).touch()
        return shown

    assert asyncio.run(collect()) == ["a", "a red", "a red circle"]


@pytest.mark.parametrize(
    ("helper", "words"),
    [
        (program("import sys; sys.exit('no model here')"), "no model here"),
        (program("import os; os._exit(3)"), "it ended with 3"),
        (program("raise ValueError('no such model')"), "rewritten: ValueError: no such model;"),
        (program("print()"), "wrote nothing"),
        (program("while True: print('x' * 1000)"), "does not stop talking"),
        (Program(command=("/no/such/program",)), "No such file"),
    ],
)
def test_what_goes_wrong_is_said(helper, words):
    with pytest.raises(StudioError, match=words):
        all_suggestions(helper, asked())


@pytest.mark.parametrize("limits", [{"silence": 0.3}, {"longest": 0.3}])
def test_one_that_hangs_is_ended(tmp_path, limits):
    file = tmp_path / "pid"
    code = f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with pytest.raises(StudioError, match="did not answer within 0.3 s"):
        all_suggestions(program(code), asked(), **limits)
    if file.exists():  # the process started
        assert not _is_alive(int(file.read_text() or 0))


def _is_alive(process: int) -> bool:
    with open("/proc/self/status", encoding="utf-8"):
        pass
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_one_that_says_much_beside_its_answer_is_heard_out():
    code = "import sys; sys.stderr.write('loading weights\\n' * 100_000); print('a grey cat')"
    assert all_suggestions(program(code), asked(), silence=20)[-1] == "a grey cat"
    with pytest.raises(StudioError, match="did not answer within 0.5 s"):
        all_suggestions(program("import sys\nwhile True: sys.stderr.write('loading weights\\n')"), asked(), silence=0.5)


def test_a_command_line_is_read_as_a_shell_reads_it():
    assert Program.from_command_line("python 'my file.py' -x").command == ("python", "my file.py", "-x")
    with pytest.raises(StudioError, match="is not a command line"):
        Program.from_command_line("python 'my file.py")
