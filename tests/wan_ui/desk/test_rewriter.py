"""A rewriter is any program; what goes wrong with it is said in one sentence."""

import sys

import pytest

from backend.errors import StudioError
from wan_ui.desk.rewriter import PromptRewriter


def program(code: str) -> PromptRewriter:
    return PromptRewriter(command=(sys.executable, "-c", code))


def test_it_is_given_prompt_and_preset():
    code = "import json, sys; given = json.load(sys.stdin); print(given['preset'], given['prompt'].upper())"
    assert program(code).suggest("ein Kreis; $(rm -rf) 圆", "wan-tiny") == "wan-tiny EIN KREIS; $(RM -RF) 圆"


@pytest.mark.parametrize(
    ("rewriter", "words"),
    [
        (program("import sys; sys.exit('no model here')"), "no model here"),
        (program("print()"), "wrote nothing"),
        (PromptRewriter(command=("/no/such/program",)), "No such file"),
    ],
)
def test_what_goes_wrong_is_said(rewriter, words):
    with pytest.raises(StudioError, match=words):
        rewriter.suggest("x", "wan-tiny")


def test_without_a_command_there_is_none():
    assert PromptRewriter.of(None) is None and PromptRewriter.of(" ") is None
    assert PromptRewriter.of("python 'my file.py' -x").command == ("python", "my file.py", "-x")
