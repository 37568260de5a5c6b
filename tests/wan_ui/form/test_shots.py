"""Tests of the storyboard editor: how it shows a request, and how its lines are read."""

import json
from dataclasses import replace

import pytest

from backend.errors import ImageError, RequestError, SoundError
from backend.schemas.events import ShotStarted, Step
from backend.schemas.request import GenerationRequest
from presets import load_preset
from tests.wan_ui.builders import CHINESE, a_job
from tests.wan_ui.form.test_form import a_draft
from wan_ui.components.field_errors import error_place
from wan_ui.components.progress import StageView, advance_view, progress_texts
from wan_ui.form.load_settings import decode_settings, encode_settings
from wan_ui.form.shots import (
    ShotsPanel,
    convert_frame_rate,
    max_characters_html,
    read_storyboard,
    sent_job_html,
    storyboard_values,
)
from wan_ui.form.shots_html import storyboard_html
from wan_ui.i18n.english import ENGLISH

FILM = {
    "shots": [
        {"prompt": "a <b>fox</b>", "seconds": "1", "seed": ""},
        {"prompt": "a cat", "seconds": "", "seed": "7", "cut": True, "fade": 0.5},
        {"job": "made", "num_frames": 17, "trim": [0.5, 1], "prompt": "a dog"},
    ],
    "blocks": ["a1", "b2", "c3"],
}


def text(**changes) -> str:
    return json.dumps(FILM | changes)


def test_a_timeline_becomes_the_request_and_the_request_the_same_timeline():
    request = a_draft(**read_storyboard(text()), num_frames=33).to_request()
    assert [(shot.prompt, shot.num_frames, shot.seed, shot.cut, shot.fade) for shot in request.shots] == [
        ("a <b>fox</b>", 17, None, False, 0),
        ("a cat", None, 7, True, 0.5),
        ("a dog", 17, None, False, 0),
    ]
    assert request.prompt == "a <b>fox</b>" and request.total_frames == 17 + 33 - 8 + 8
    assert request.shot_videos == ("/studio/job/made",) and request.shots[2].trim == (0.5, 1)
    words = request.with_changes(shots=[shot.model_dump() for shot in request.shots[:2]], shot_videos=())
    assert a_draft(**read_storyboard(json.dumps(storyboard_values(words))), num_frames=33).to_request() == words
    assert (
        read_storyboard("") == read_storyboard('{"shots": []}') == {}
        and storyboard_values(request.with_changes(shots=(), shot_videos=()))["shots"] == []
    )


def test_the_sound_comes_with_its_times_or_not_at_all():
    given = {"track": "/a.wav", "track_start": 0.5, "track_fade": 1, "track_volume": 0}
    assert {name: read_storyboard(text(**given))[name] for name in given} == given
    assert read_storyboard(text(**given | {"track": ""})).keys() == {"shots"}


FIGURES = [{"name": "Anna", "image": "/a.png"}, {"name": "<b>dog</b>", "image": "/d.png"}]


def test_figures_come_with_their_pictures_and_go_back_into_the_form(tmp_path, monkeypatch):
    given = read_storyboard(
        json.dumps({"shots": [{"prompt": "Anna walks"}], "figures": FIGURES, "figure_images": ["/etc/hostname"]})
    )
    request = a_draft(**given, preset="wan-tiny-vace").to_request()
    assert [(one.name, one.image) for one in request.figures] == [("Anna", 0), ("<b>dog</b>", 1)]
    assert request.figure_images == ("/a.png", "/d.png")
    assert storyboard_values(request)["figures"] == [{"name": "Anna", "image": None}, {"name": "<b>dog</b>", "image": None}]
    monkeypatch.setattr("wan_ui.form.shots.copy_to_cache", lambda path: f"/cache{path}")
    panel = ShotsPanel(timeline=1, editor=2, sent_job=3, max_characters=4)
    shown = panel.load_job(replace(a_job(tmp_path), request=request), ENGLISH)
    assert json.loads(shown[1])["figures"][0] == {"name": "Anna", "image": "/cache/a.png"}
    assert "&lt;b&gt;dog" in shown[2] and "<b>dog" not in shown[2]
    link = a_draft(**given, preset="wan-tiny-vace").to_settings()
    assert [(one.name, one.image) for one in link.figures] == [("Anna", None), ("<b>dog</b>", None)] and not link.figure_images
    assert decode_settings(encode_settings(request)).figures == link.figures
    assert 'data-most="1"' in panel.show_shots(request, ENGLISH)[4] and 'data-most="0"' in max_characters_html(
        load_preset("wan-tiny")
    )


def test_the_browser_keeps_no_file_of_a_film():
    kept = a_draft(**read_storyboard(text(track="/a.wav"))).to_settings()
    assert len(kept.shots) == 3 and not (kept.shot_videos or kept.track) and kept.shots[2].video is None


def test_the_frame_is_in_both_languages_and_shows_no_markup_of_a_prompt():
    for texts in (ENGLISH, CHINESE):
        drawn = storyboard_html(text(), texts)
        assert 'data-on="true"' in drawn and texts.shot_add in drawn and texts.storyboard_play in drawn
        assert "&lt;b&gt;fox" in drawn and "<b>fox" not in drawn
    assert 'data-on="false"' in storyboard_html("", ENGLISH)


def test_the_script_is_told_which_job_its_blocks_were_sent_to(tmp_path):
    story = replace(a_job(tmp_path), request=a_draft(**read_storyboard(text())).to_request())
    assert sent_job_html(text(), story) == f'<i data-job="{story.id}" data-blocks="a1,b2,c3"></i>'
    assert sent_job_html(text(blocks=["<b>", 5, "x" * 99, "ok"]), story).endswith('data-blocks="ok"></i>')
    assert sent_job_html(text(blocks=None), story) == sent_job_html("x", story) == sent_job_html(text(), a_job(tmp_path)) == ""


@pytest.mark.parametrize(
    "words",
    ["x", "[1]", '{"shots": 5}', '{"shots": [1]}', '{"shots": {"a": 1}}', 5, "[" * 100_000,
     '{"shots": [{"prompt": ["x"]}]}', '{"shots": [{"prompt": "x", "seconds": "long"}]}', '{"shots": [{"job": 5}]}',
     '{"shots": [{"prompt": "x", "trim": "all"}]}', '{"shots": [{"prompt": "x", "image": {"path": "/etc/hostname"}}]}',
     '{"shots": [{"prompt": "x"}], "track": "/a.wav", "track_start": 99}',
     '{"shots": [{"prompt": "x"}], "track": "/a.wav", "track_volume": "loud"}',
     '{"shots": [{"prompt": "x"}], "track": ["/a.wav"]}', '{"shots": [{"prompt": "x"}], "figures": "Anna"}',
     '{"shots": [{"prompt": "x"}], "figures": [5]}', '{"shots": [{"prompt": "x"}], "figures": [{"name": {"a": 1}}]}',
     '{"shots": [{"prompt": "x"}], "figures": [{"name": "Anna", "image": {"path": "/etc/hostname"}}]}',
     '{"shots": [{"prompt": "x"}], "figures": {"name": "Anna"}}', '{"shots": [{"prompt": "x"}], "figures": [{"name": "Anna"}]}'],
)  # fmt: skip
def test_anything_else_is_refused_beside_the_timeline(words):
    with pytest.raises(RequestError) as refusal:
        a_draft(**read_storyboard(words)).to_request()
    assert error_place(refusal.value) == "prompt" and "\n" not in str(refusal.value)


def test_a_shot_without_words_is_refused_there_too():
    with pytest.raises(RequestError, match="shot 2 has an empty prompt") as refusal:
        a_draft(**read_storyboard('{"shots": [{"prompt": "x"}, {"prompt": ""}]}')).to_request()
    assert error_place(refusal.value) == "prompt"
    assert error_place(ImageError("image"), is_of_shots=True) == error_place(SoundError("sound"), is_of_shots=True) == "prompt"


def test_the_stage_says_which_shot_is_made_and_its_bar_never_goes_back():
    view, reached = StageView(), []
    for index in (1, 2):
        view = advance_view(view, ShotStarted(index, 2))
        for step in (1, 2):
            view = advance_view(view, Step(step, 2, 0.1, 0.1))
            reached.append(view.fraction)
    assert progress_texts(view, ENGLISH)[1] == "Shot 2 of 2 · Step 2 of 2"
    assert reached == sorted(reached) and reached[1] < 0.5 < reached[3] < 1


def test_a_storyboard_is_kept_by_from_stored():
    request = GenerationRequest.from_preset(load_preset("wan-tiny"), shots=[{"prompt": "a fox"}], seed=1)
    assert GenerationRequest.from_stored(request.for_sharing()).shots == request.shots


def test_frames_of_made_shots_are_counted_at_the_films_rate():
    rows = [{"job": "a", "num_frames": 81, "fps": 24}, {"job": "b", "num_frames": 17}, {"prompt": "x", "fps": "1"}]
    assert convert_frame_rate(rows, 16) == [{"job": "a", "num_frames": 54}, {"job": "b", "num_frames": 17}, {"prompt": "x"}]
    assert convert_frame_rate(rows, None)[0]["num_frames"] == 81
