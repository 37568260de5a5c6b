"""A table becomes one request per row, or one sentence that names the wrong row."""

import pytest

from backend.errors import RequestError
from backend.schemas.batch_table import LONGEST_TABLE, MOST_ROWS, build_requests, read_table
from backend.schemas.request import GenerationRequest
from presets import load_preset

BASE = GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="base", seed=7, steps=10)


def made(text: str, *, is_seed_new: bool = False) -> list[GenerationRequest]:
    return build_requests(read_table(text), BASE, is_seed_new=is_seed_new)


def test_without_columns_each_line_is_a_prompt():
    assert [one.prompt for one in made("Prompt, a cat asks\na star")] == ["Prompt, a cat asks", "a star"]
    found = made("a red circle, moving left\n\n  a prompt with ; and \t signs \n")
    assert [one.prompt for one in found] == ["a red circle, moving left", "a prompt with ; and \t signs"]
    assert all((one.seed, one.steps) == (7, 10) for one in found)
    assert len({one.seed for one in made("a\nb\nc", is_seed_new=True)}) == 3


@pytest.mark.parametrize("between", [",", ";", "\t"])
def test_columns_change_what_they_name_and_leave_the_rest(between):
    text = '\ufeffPrompt,seed,Steps,guidance,size\n"a circle, red",1,,5,128x96\na star,2,4,,\n'.replace(",", between)
    first, second = made(text.replace(f"circle{between} red", "circle, red"))
    assert (first.prompt, first.seed, first.steps, first.guidance) == ("a circle, red", 1, 10, (5.0,))
    assert (first.width, first.height) == (128, 96)
    assert (second.prompt, second.seed, second.steps, second.width) == ("a star", 2, 4, BASE.width)


def test_a_row_may_name_another_preset():
    (found,) = made("prompt,preset,seed\na walk,wan2.1-t2v-1.3b-480p,3\n")
    assert (found.preset, found.steps, found.seed) == ("wan2.1-t2v-1.3b-480p", load_preset("wan2.1-t2v-1.3b-480p").steps, 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("prompt,seed", "has 0 rows"),
        ("prompt,sed,steps\na,1,2", "the column 'sed' must be one of"),
        ("prompt,model\na,wan-tiny", "the column 'model' must be one of"),
        ("prompt,seed,seed\na,1,2", "twice"),
        ("prompt,seed\na,one", "row 1: seed='one' must be a number"),
        ("prompt,seed\na,1\nb,2,3", "row 2 has 3 cells"),
        ("prompt,steps\na,4\nb,-3", "row 2: steps"),
        ("prompt,size\na,wide", "row 1: size='wide' must be WIDTHxHEIGHT"),
        ("prompt,preset\na,../../etc", "row 1: preset"),
        ("prompt,image\na,/etc/passwd", "the column 'image' must be one of"),
        ("\n".join("a" * 3 for _ in range(MOST_ROWS + 1)), "has 101 rows"),
        ("x" * (LONGEST_TABLE + 1), "200,001 characters"),
    ],
)
def test_what_is_wrong_is_one_sentence(text, words):
    with pytest.raises(RequestError) as caught:
        made(text)
    assert words in str(caught.value) and "\n" not in str(caught.value)
