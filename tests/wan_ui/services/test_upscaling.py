"""Tests of the upscaling menu, and of the choices that a page sends."""

from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from backend.engine.estimate import Estimate
from backend.errors import RequestError
from backend.schemas.finished import describe_clip, upscale_request
from backend.schemas.upscaling import FOREIGN
from tests.wan_ui.builders import CHINESE, a_job, a_request, a_result
from wan_ui.components.progress import StageView
from wan_ui.i18n.english import ENGLISH
from wan_ui.library.html import detail_html
from wan_ui.services.upscaling import UpscaleOffer, find_offers, parse_offer, upscale_job_request, upscale_menu
from wan_ui.stage.html import Model, stage_html

KNOWN = Estimate(seconds=12.0, compile_seconds=0.0, is_warm=True, basis="measured", runs=1)


def engine(*names: str):
    estimates = SimpleNamespace(estimate=lambda request: KNOWN if request.upscale == 2 else None)
    return SimpleNamespace(upscalers=lambda: list(names), estimates=estimates)


@pytest.fixture
def job(tmp_path):
    (tmp_path / "video.mp4").write_bytes(b"video")
    return replace(a_job(), folder=tmp_path)


def test_every_model_that_is_here_is_offered_with_both_scales(job):
    found = find_offers(engine("animevideov3", "<b>.pth"), job, a_result(job))
    width, height = job.request.width, job.request.height
    assert [(one.upscaler, one.scale, one.size) for one in found] == [
        (name, scale, (scale * width, scale * height)) for name in ("animevideov3", "<b>.pth") for scale in (2, 4)
    ]
    menu = upscale_menu(job, found, ENGLISH)
    assert f"2× animevideov3 · {2 * width} × {2 * height} · About 12 s" in menu and "<b>" not in menu
    assert f"4× animevideov3 · {4 * width} × {4 * height}<" in menu  # the duration is unknown
    assert CHINESE.upscale_menu in upscale_menu(job, found, CHINESE)


def test_nothing_is_offered_without_an_upscaler_or_a_video_or_twice(job, tmp_path):
    result, there = a_result(job), engine("animevideov3")
    assert find_offers(engine(), job, result) == [] and upscale_menu(job, [], ENGLISH) == ""
    assert find_offers(there, None, None) == find_offers(there, job, None) == []
    assert find_offers(there, replace(job, deleted=1.0), result) == []
    assert find_offers(there, replace(job, request=upscale_request(job.request, "/a.mp4", 2)), result) == []
    large = replace(job, request=describe_clip("a", 4000, 2000, job.request.num_frames, job.request.fps))
    assert [one.scale for one in find_offers(there, large, replace(result, width=4000, height=2000))] == [
        2
    ]  # upscaling four times exceeds the limit
    (tmp_path / "video.mp4").unlink()
    assert find_offers(there, job, result) == []


def test_the_request_names_the_jobs_own_file_whatever_the_page_says(job):
    assert parse_offer(UpscaleOffer(upscaler="a.pth", scale=4, size=(1, 1)).value) == (4, "a.pth")
    assert upscale_job_request(job, a_result(job), 4, "a.pth").finished_video == str(job.folder / "video.mp4")
    for value in ("", "8:a", "2.0:a", "-2:a", "²:a", "2" * 9999):
        with pytest.raises(RequestError, match="must be 2 or 4"):
            parse_offer(value)
    with pytest.raises(RequestError, match="must be the name of a file"):
        upscale_job_request(job, a_result(job), *parse_offer("2:../../etc/passwd"))


class Acts(HTMLParser):
    def __init__(self, html: str):
        super().__init__()
        self.found = set()
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.found |= {value for name, value in attributes if name == "data-act"}


def test_what_no_model_has_made_cannot_be_made_again_or_fill_the_form(job):
    found = (UpscaleOffer(upscaler="a", scale=2, size=(192, 192)),)
    usual = Acts(stage_html(StageView(phase="finished", result=a_result(job)), job, ENGLISH, Model(offers=found))).found
    assert {"again:upscale", "again:seed", "fill:use", "fill:continue"} <= usual
    clip = replace(job, request=upscale_request(describe_clip("holiday.mp4", 96, 96, 17, 16), "/a.mp4", 2))
    result = replace(a_result(clip), request=clip.request, width=192, height=192)
    html = stage_html(StageView(phase="finished", result=result), clip, ENGLISH, Model(title=FOREIGN))
    acts = Acts(html).found | Acts(detail_html(clip, result, ENGLISH)).found
    assert not {"again:seed", "again:upscale", "fill:use", "edit:use", "fill:continue", "edit:continue"} & acts
    assert {"again:same", "queue:star", "queue:delete", "edit:clip"} <= acts
    assert "Upscaled</dt><dd>2× by animevideov3, from 96 × 96" in html and "<dt>Seed" not in html


def test_the_settings_of_a_larger_video_say_by_what_it_was_made(job):
    made = replace(job, request=a_request(upscale=4, upscaler="x4plus"))
    html = stage_html(StageView(phase="finished", result=replace(a_result(made), width=384, height=384)), made, ENGLISH)
    assert "4× by x4plus, from" in html and "384 × 384" in html and "<dt>Seed" in html
