"""Check characters of storyboards: which characters a prompt names, the reference images of each shot, storage, and refusals."""

import pytest

from backend.errors import RequestError
from backend.schemas.characters import find_characters, read_characters
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import Character
from backend.schemas.shape import Shape
from backend.schemas.shots import shot_request
from presets import load_preset

VACE = "wan2.1-vace-1.3b-480p"
NAMES = ("Anna", "the dog", "dog", "安娜", "安", "Zoë", "R2-D2", "안나", "O_o")
NAMED = {  # also read by the page's script: tests/wan_ui/form/test_figures_in_browser.py
    "Anna walks": ["Anna"],
    "then ANNA, and anna's hat": ["Anna"],
    "Annabel and Hannah": [],
    "an_anna": [],
    "the   Dog runs": ["the dog"],
    "a dog and the dog": ["the dog", "dog"],
    "dogs": [],
    "看安娜跑": ["安娜"],
    "安静": ["安"],
    "看Anna跑": ["Anna"],
    "ZOË!": ["Zoë"],
    "Zoëlle": [],
    "r2-d2 rolls": ["R2-D2"],
    "R2-D22": [],
    "안나가 걷는다": ["안나"],
    "\U0001f600Anna\U0001f600": ["Anna"],
    "O_o": ["O_o"],
    "nobody": [],
    "": [],
}
A, DOG = {"name": "Anna", "image": "/a.png"}, {"name": "the dog", "image": "/d.png"}


def asked(*prompts: str, figures=(A, DOG), name: str = VACE, **changes) -> GenerationRequest:
    rows = [prompt if isinstance(prompt, dict) else {"prompt": prompt} for prompt in prompts]
    return GenerationRequest.from_preset(load_preset(name), shots=rows, figures=list(figures), seed=5, **changes)


def shown(story: GenerationRequest) -> list[tuple[str, ...]]:
    preset = load_preset(story.preset)
    return [shot_request(story, index, preset, "/before").references for index in range(len(story.shots))]


@pytest.mark.parametrize(("prompt", "names"), NAMED.items())
def test_a_prompt_names_whole_words_in_any_case_and_chinese_anywhere(prompt, names):
    figures = [Character(name=name, image=0) for name in NAMES]
    assert [figure.name for figure in find_characters(prompt, figures)] == names


def test_a_shot_is_shown_the_pictures_of_the_figures_that_it_names_and_no_others():
    story = asked("Anna walks", "a street", "The dog finds Anna", {"prompt": "anna again", "cut": True})
    assert shown(story) == [("/a.png",), (), ("/a.png", "/d.png"), ("/a.png",)]
    third = shot_request(story, 2, load_preset(VACE), "/before")
    assert (third.video, third.extend) == ("/before/last.mp4", "after"), "it continues the previous shot and has references"
    assert not third.figures and not third.figure_images and Shape.from_request(third).num_references == 2
    assert shown(asked("Anna", "a street", references=("/style.png",))) == [("/style.png", "/a.png"), ("/style.png",)]
    both = asked("Anna and her sister", figures=(A, {"name": "her sister", "image": "/a.png"}))
    assert both.figure_images == ("/a.png",) and shown(both) == [("/a.png",)], "one picture is shown once"


def test_it_is_stored_and_shared_without_paths_and_older_requests_have_none():
    story = asked("Anna walks")
    assert GenerationRequest.from_stored(story.to_json()) == story == story.with_changes() and story.is_from_pictures
    assert story.for_sharing()["figure_images"] == ["a.png", "d.png"]
    assert story.for_sharing()["figures"] == [{"name": "Anna", "image": 0}, {"name": "the dog", "image": 1}]
    assert not {"figures", "figure_images"} & asked("a street", figures=()).to_json().keys()
    assert read_characters([]) == {}


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ([{"name": "Anna"}], "character 'Anna' has no image and must have one; give it an image, or leave it out"),
        ([{"image": "/a.png"}], "character 1 has no name and must have a name with letters; give it a name, such as Anna"),
        ([{"name": " \t ", "image": "/a.png"}], "character 1 has no name and must have a name"),
        ([{"name": "!?", "image": "/a.png"}], "character 1 has no name and must have a name"),
        (
            [A, {"name": "ANNA", "image": "/b.png"}],
            "character 2 has the name 'ANNA' of an earlier character, and must have its own; rename one",
        ),
        (
            [{"name": "x" * 200, "image": "/a.png"}],
            "character 1, 'xxxxxxxxxxxxxxxxxxxxxxxxxx..., must have a name of at most 40 plain",
        ),
        (
            [{"name": "a\x00b", "image": "/a.png"}],
            "character 1, 'a\\x00b', must have a name of at most 40 plain characters; shorten it",
        ),
        ([{"name": "a\u202eb", "image": "/a.png"}], "character 1, 'a\\u202eb', must have a name of at most 40 plain characters"),
        ([A | {"name": f"f{number}"} for number in range(9)], "figures has 9 characters and may have at most 8; leave some out"),
        ([{"name": "Anna", "image": "a.png"}], "figure_images='a.png' must be an absolute path; give the whole path"),
        ([{"name": "Anna", "image": 5}], "character 1 has image=5, which must be the path of a file; correct it"),
        (
            [{"name": ["Anna"], "image": "/a.png"}],
            "character 1, {'image': '/a.png', 'name': ['Anna']}, must have a name and an image",
        ),
        ([A | {"face": 1}], "character 1, "),
        (["Anna"], "character 1, 'Anna', must have a name and an image; correct it"),
        ([None], "character 1, None, must have a name and an image; correct it"),
    ],
)
def test_what_is_no_figure_is_refused_in_one_sentence(figures, message):
    with pytest.raises(RequestError) as refusal:
        asked("Anna", figures=figures)
    assert str(refusal.value).startswith(message) and "\n" not in str(refusal.value)


def test_figures_that_cannot_be_shown_are_refused_in_one_sentence():
    with pytest.raises(
        RequestError, match="^figures were given, but wan-tiny takes no reference images; leave them out, or choo"
    ):
        asked("Anna", name="wan-tiny")
    with pytest.raises(
        RequestError, match="^shot 2 names Anna and the dog, but wan-tiny-vace takes at most 1 image in a video; na"
    ):
        asked("Anna", "Anna and the dog", name="wan-tiny-vace")
    with pytest.raises(
        RequestError, match="^shot 1 names Anna beside the references, but wan-tiny-vace takes at most 1 image in"
    ):
        asked("Anna", name="wan-tiny-vace", references=("/style.png",))
    with pytest.raises(RequestError, match="^figures was given but needs shots; give shots, or leave this out$"):
        GenerationRequest.from_preset(load_preset(VACE), prompt="Anna", figures=[A])
    with pytest.raises(RequestError, match="^figures='Anna' must be a list of characters"):
        asked("Anna", figures=()).from_preset(load_preset(VACE), shots=[{"prompt": "x"}], figures="Anna")
    with pytest.raises(RequestError, match="^2 references were given, and at most 1 can be; leave some out$"):
        GenerationRequest.from_preset(load_preset("wan-tiny-vace"), prompt="x", references=("/a.png", "/b.png"))


@pytest.mark.parametrize("figure", [{"name": "x" * 200}, {"name": ""}, {"name": "A", "image": 2}, {"name": "A", "image": -1}])
def test_what_a_link_or_a_file_says_has_bounds_too(figure):
    with pytest.raises(RequestError, match="^character "):
        GenerationRequest.from_stored(asked("x").to_json() | {"figures": [figure]})


def test_a_link_keeps_the_names_whose_pictures_are_to_be_given_again():
    stored = GenerationRequest.from_stored(asked("Anna").to_json() | {"figures": [{"name": "Anna"}], "figure_images": []})
    assert stored.figures == (Character(name="Anna", image=None),)
