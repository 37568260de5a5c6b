"""The storyboard's editor: what it draws of a request, and what is read from its lines."""

import pytest

from backend.contract.events import ShotBegun, Step
from backend.contract.request import GenerationRequest
from backend.errors import RequestError
from presets import load_preset
from tests.wan_ui.form.test_form import a_draft
from wan_ui.form.shots import editor_html, lines_of, read_lines
from wan_ui.parts.notes import place_of
from wan_ui.parts.progress import StageView, advance, progress_words
from wan_ui.words.chinese import CHINESE
from wan_ui.words.english import ENGLISH

LINES = '[{"prompt": "a <b>fox</b>", "seconds": "1", "seed": ""}, {"prompt": "a cat", "seconds": "", "seed": "7"}]'


def test_lines_become_the_request_and_the_request_the_same_lines():
    request = a_draft(shots=read_lines(LINES), num_frames=33).to_request()
    assert [(shot.prompt, shot.num_frames, shot.seed) for shot in request.shots] == [
        ("a <b>fox</b>", 17, None),
        ("a cat", None, 7),
    ]
    assert request.prompt == "a <b>fox</b>" and request.total_frames == 17 + 24
    assert a_draft(shots=read_lines(lines_of(request)), num_frames=33).to_request() == request
    assert read_lines("") == () and lines_of(request.changed(shots=())) == ""


def test_the_editor_shows_each_line_and_no_markup_of_a_prompt():
    shots = a_draft(shots=read_lines(LINES)).to_request().shots
    for texts in (ENGLISH, CHINESE):
        drawn = editor_html(shots, 16, texts)
        assert drawn.count("<li>") == 3 and 'data-on="true"' in drawn and texts.shot_add in drawn  # the third is to be copied
        assert "&lt;b&gt;fox" in drawn and "<b>" not in drawn and 'value="1.062"' in drawn and 'value="7"' in drawn
    assert 'data-on="false"' in editor_html((), 16, ENGLISH)


@pytest.mark.parametrize("text", ["x", "[1]", "{}", 5, '[{"prompt": ["x"]}]', '[{"prompt": "x", "seconds": "long"}]'])
def test_anything_else_is_refused_beside_the_lines(text):
    with pytest.raises(RequestError) as refusal:
        a_draft(shots=read_lines(text)).to_request()
    assert place_of(refusal.value) == "prompt"


def test_a_shot_without_words_is_refused_there_too():
    with pytest.raises(RequestError, match="shot 2 has an empty prompt") as refusal:
        a_draft(shots=read_lines('[{"prompt": "x"}, {"prompt": ""}]')).to_request()
    assert place_of(refusal.value) == "prompt"


def test_the_stage_says_which_shot_is_made_and_its_bar_never_goes_back():
    view, reached = StageView(), []
    for index in (1, 2):
        view = advance(view, ShotBegun(index, 2))
        for step in (1, 2):
            view = advance(view, Step(step, 2, 0.1, 0.1))
            reached.append(view.fraction)
    assert progress_words(view, ENGLISH)[1] == "Shot 2 of 2 · Step 2 of 2"
    assert reached == sorted(reached) and reached[1] < 0.5 < reached[3] < 1


def test_a_storyboard_is_kept_by_from_stored():
    request = GenerationRequest.from_preset(load_preset("wan-tiny"), shots=[{"prompt": "a fox"}], seed=1)
    assert GenerationRequest.from_stored(request.for_sharing()).shots == request.shots
