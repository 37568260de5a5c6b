"""Tests of the table and the labels of compared settings."""

import re
from html import escape

import pytest

from presets import load_preset
from tests.wan_ui.builders import a_job, a_request, a_result
from wan_ui.compare.html import Cell, CompareContent, compare_html, difference_labels, differences
from wan_ui.components.progress import StageView
from wan_ui.form.unused_settings import setting_label
from wan_ui.i18n.english import ENGLISH
from wan_ui.i18n.languages import LANGUAGES


def test_the_table_has_what_differs_and_nothing_else():
    requests = [a_request(steps=4), a_request(steps=8)]
    assert [name for name, _ in differences(requests)] == ["steps"]


def test_a_setting_that_only_some_videos_have_is_compared_with_its_default():
    requests = [a_request(cfg_zero=True), a_request(), a_request(upscale=2)]
    for some in (requests, requests[::-1]):
        assert {name: sorted(map(str, values)) for name, values in differences(some)} == {
            "cfg_zero": ["False", "False", "True"],
            "upscale": ["0", "0", "2"],
        }
        assert len(difference_labels(some, ENGLISH)) == 3


def test_a_video_is_named_by_what_is_its_own():
    tiny = a_request()
    large = type(tiny).from_preset(load_preset("wan2.1-t2v-1.3b-480p"), prompt=tiny.prompt, seed=tiny.seed)
    assert "model wan-tiny" in difference_labels([tiny, large], ENGLISH)[0]


@pytest.mark.parametrize("texts", LANGUAGES.values(), ids=LANGUAGES)
def test_the_names_and_values_of_settings_are_in_the_pages_language(texts):
    requests = [a_request(flow_shift=2.5), a_request(flow_shift=3.0, cfg_zero=True)]
    assert (
        difference_labels(requests, texts)[1]
        == f"{setting_label('flow_shift', texts)} 3 · {texts.setting_cfg_zero} {texts.setting_on}"
    )
    cells = tuple(Cell(job=a_job(**changes), view=StageView(phase="queued")) for changes in ({}, {"cfg_zero": True}))
    html = compare_html(CompareContent(id="abc", cells=cells), texts)
    values = f"<td>{texts.setting_off}</td><td>{texts.setting_on}</td>"
    assert f'<th scope="row">{escape(texts.setting_cfg_zero)}</th>{values}' in html and "cfg_zero" not in html


def test_a_long_prompt_is_whole_in_the_table_and_short_in_the_labels():
    long = "a red circle and " * 20
    jobs = [a_job(prompt=long), a_job(shots=[{"prompt": "a"}, {"prompt": "b", "cut": True}])]
    requests, cells = [job.request for job in jobs], tuple(Cell(job=job, view=StageView(phase="queued")) for job in jobs)
    assert f"<td>{long}</td>" in compare_html(CompareContent(id="abc", cells=cells), ENGLISH)
    assert long not in difference_labels(requests, ENGLISH)[0] and "shots 2 (a; b)" in difference_labels(requests, ENGLISH)[1]


def test_shots_that_differ_only_in_their_cut_are_written_in_full():
    jobs = [a_job(shots=[{"prompt": "a"}, {"prompt": "b", "cut": cut}]) for cut in (True, False)]
    html = compare_html(
        CompareContent(id="abc", cells=tuple(Cell(job=job, view=StageView(phase="queued")) for job in jobs)), ENGLISH
    )
    assert "cut=True" in html and "cut=False" in html


def test_a_video_stands_beside_the_clip_that_it_was_made_from():
    job = a_job(video="/data/runs/job-1/input-video.mp4", strength=0.5)
    made = Cell(job=job, view=StageView(phase="finished", result=a_result(job)))
    html = compare_html(CompareContent(id="abc", cells=(Cell(job=job, view=made.view, is_original=True), made)), ENGLISH)
    assert html.count("<video") == 2 and "studio/media/job-1/before.mp4" in html and "studio/media/job-1/video.mp4" in html
    assert 'data-original="true"' in html and "<figcaption>Before</figcaption>" in html and "0.5" in html
    assert re.findall(r'data-sound="(\w+)"', html) == ["false", "true"] and html.count('data-compare="sound" hidden') == 1
    assert ENGLISH.compare_same not in html and ENGLISH.compare_export in html


def test_only_videos_with_sound_have_a_speaker():
    job = a_job()
    results = [a_result(job), a_result(job, has_sound=True), None]
    cells = tuple(Cell(job=job, view=StageView(phase="denoising", result=result)) for result in results)
    html = compare_html(CompareContent(id="abc", cells=cells), ENGLISH)
    assert re.findall(r'data-compare="sound"( hidden)?>', html) == [" hidden", "", " hidden"]
    assert 'aria-label="Play the audio of video 2 (key 2)" aria-pressed="false"' in html and html.count("<video muted ") == 3
