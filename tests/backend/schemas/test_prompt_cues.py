"""Check cues: how they are written, merged and checked, and which prompt and action each block uses."""

import pytest

from backend.errors import RequestError
from backend.models.model import PromptConditions
from backend.pipeline.prompt_schedule import Script, VideoConditions
from backend.schemas.prompt_cues import Cue, merge_cues, parse_actions, parse_prompts
from backend.schemas.request import GenerationRequest
from presets import Preset, list_presets, load_preset

LIVE = load_preset("wan2.1-live-1.3b-480p")


@pytest.fixture
def preset(monkeypatch) -> Preset:
    """A live preset with actions; 81 frames are seven blocks."""
    preset = Preset(**LIVE.model_dump() | {"name": "acting", "actions": ["left", "right"]})
    monkeypatch.setattr("backend.schemas.settings.find_preset", lambda name: preset)
    return preset


def cued(preset: Preset, *cues: Cue, **changes) -> GenerationRequest:
    return GenerationRequest.from_preset(preset, prompt="a red circle", cues=cues, **changes)


def test_actions_and_prompts_are_read_from_words():
    cues = [*parse_actions("right*2, left", 3), *parse_prompts(["2: a blue square"])]
    assert merge_cues(cues) == (Cue(block=0, action="right"), Cue(block=2, action="left", prompt="a blue square"))
    assert parse_actions("", 9) == ()


@pytest.mark.parametrize("text", ["*3", "right*0", "right*-1", "right*x", "right*999999999", ",", "right,,left"])
def test_actions_that_cannot_be_read_are_refused(text):
    with pytest.raises(RequestError, match="must be actions"):
        parse_actions(text, 1)


@pytest.mark.parametrize("text", ["a blue square", "x:a", ":a", "-1:a", "99999999:a"])
def test_prompts_that_cannot_be_read_are_refused(text):
    with pytest.raises(RequestError, match="a block's number and a prompt"):
        parse_prompts([text])


@pytest.mark.parametrize(
    ("cues", "message"),
    [
        ([Cue(block=7, prompt="x")], "the video's 7 blocks, 0 to 6"),
        ([Cue(block=-1, prompt="x")], "the video's 7 blocks"),
        ([Cue(block=2, prompt="x"), Cue(block=2, action="left")], "each block once"),
        ([Cue(block=1, prompt=" ")], "is empty"),
        ([Cue(block=1, prompt="a\x00b")], "control character"),
        ([Cue(block=1, action="jump")], "must be one of left, right"),
    ],
)
def test_cues_that_cannot_be_followed_are_refused(preset, cues, message):
    with pytest.raises(RequestError, match=message):
        cued(preset, *cues)


def test_a_model_without_actions_or_of_one_piece_takes_no_cues():
    with pytest.raises(RequestError, match="is not supported"):
        cued(LIVE, Cue(block=1, action="left"))
    with pytest.raises(RequestError, match="is not a live preset"):
        cued(load_preset("wan-tiny"), Cue(block=0, prompt="x"))


def test_a_request_without_cues_is_stored_as_before(preset):
    data = cued(preset).to_json()
    assert "cues" not in data and "action" not in data
    request = cued(preset, Cue(block=3, prompt="a blue square"), action="left")
    assert GenerationRequest.from_stored(request.to_json()) == request


def test_each_block_has_what_was_said_last(preset):
    script = Script(cued(preset, Cue(block=1, action="left"), Cue(block=3, prompt="x"), Cue(block=5, prompt="a red circle")))
    said = [(script.texts[number].prompt, script.texts[number].action) for number in map(script.text_index_at, range(7))]
    assert said == [
        ("a red circle", None),
        *[("a red circle", "left")] * 2,
        *[("x", "left")] * 2,
        *[("a red circle", "left")] * 2,
    ]
    assert len(script.texts) == 3


def test_what_was_said_long_ago_is_forgotten_and_new_when_it_comes_again(preset):
    script = Script(cued(preset))
    for block, prompt in enumerate(("one", "two", "one", "three"), 1):
        script.add_cue(Cue(block=block, prompt=prompt))
    assert script.forget_oldest(2) == [0, 2]  # "one" was used after "two"
    assert not script.add_cue(Cue(block=5, prompt="one")) and script.add_cue(Cue(block=6, prompt="two"))
    conditions = VideoConditions(by_text={index: PromptConditions(full={"a": index}, half={"a": 0}) for index in (0, 1, 12)})
    conditions.remove([0, 1])
    assert conditions.by_text == {0: PromptConditions(full={}), 12: PromptConditions(full={"a": 12}, half={"a": 0})}


def test_a_cue_for_the_first_block_takes_the_beginnings_place(preset):
    script = Script(cued(preset, Cue(block=0, action="right")))
    assert [(text.prompt, text.action) for text in script.texts] == [("a red circle", "right")]


@pytest.fixture
def steered(monkeypatch) -> Preset:
    """A live preset whose actions may be done together, of a model that reads no prompt."""
    own = {"name": "steered", "actions": ["forward", "left", "look-up"], "combines_actions": True, "reads_prompt": False}
    preset = Preset(**LIVE.model_dump() | own)
    monkeypatch.setattr("backend.schemas.settings.find_preset", lambda name: preset)
    return preset


def test_actions_that_are_done_together_have_a_plus_between_them(steered):
    cues = parse_actions("forward+look-up*2,left", 3)
    request = GenerationRequest.from_preset(steered, action="left+forward", cues=cues)
    assert request.cues == (Cue(block=0, action="forward+look-up"), Cue(block=2, action="left"))
    assert GenerationRequest.from_stored(request.to_json()) == request


@pytest.mark.parametrize("action", ["forward+jump", "forward+", "left+left", "forward left"])
def test_actions_that_cannot_be_done_together_are_refused(steered, action):
    with pytest.raises(RequestError, match=r"must be one of forward, left, look-up, or several joined by \+"):
        GenerationRequest.from_preset(steered, cues=[Cue(block=0, action=action)])


def test_only_a_preset_that_combines_actions_takes_several(preset):
    with pytest.raises(RequestError, match=r"action='left\+right' must be one of left, right; choose another"):
        cued(preset, Cue(block=1, action="left+right"))


def test_a_model_that_reads_no_prompt_needs_none_and_hears_none(steered):
    assert GenerationRequest.from_preset(steered).prompt == ""
    assert GenerationRequest.from_preset(steered, prompt="a walk").prompt == "a walk"  # the video's name
    with pytest.raises(RequestError, match="a prompt for block 3 was given but steered reads no prompt"):
        GenerationRequest.from_preset(steered, cues=[Cue(block=3, prompt="x")])


def test_what_follows_from_the_inputs_holds_for_all_that_is_said():
    first, later = PromptConditions(full={"picture": 0, "keys": 1}), PromptConditions(full={"keys": 2})
    conditions = VideoConditions(by_text={0: first, 1: later})
    assert conditions.select(0, {"picture"}) == first and conditions.select(1) == later
    assert conditions.select(1, {"picture"}) == PromptConditions(full={"picture": 0, "keys": 2})
    conditions.remove([0], {"picture"})
    assert conditions.by_text == {0: PromptConditions(full={"picture": 0}), 1: later}
    assert conditions.select(1, {"picture"}) == PromptConditions(full={"picture": 0, "keys": 2})


def test_ten_thousand_actions_at_once_are_refused_with_one_sentence(preset):
    for text in (",".join(["left", "right"] * 5_000), "left*100000000", "+".join(["left"] * 10_000)):
        with pytest.raises(RequestError) as caught:
            cued(preset, *parse_actions(text, 1))
        assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)


def test_after_the_last_action_it_stays():
    assert [(cue.block, cue.action) for cue in parse_actions("right*2,up", 9)] == [(0, "right"), (2, "up"), (3, "stay")]
    assert [cue.action for cue in parse_actions("right*2,up", 3)] == ["right", "up"]
    assert all("stay" in preset.actions for preset in list_presets() if preset.actions)
