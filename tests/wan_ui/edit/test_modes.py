"""Tests of the modes of Edit: each becomes a request. An error is one sentence and leaves no files."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import numpy as np
import pytest
from gradio.utils import get_upload_folder
from PIL import Image
from starlette.testclient import TestClient

from backend.engine.engine import Engine
from backend.errors import RequestError
from backend.media.pictures import load_checked_image
from backend.media.video import read_frames
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import find_preset
from tests.clip_files import counting_clip
from tests.wan_ui.builders import CHINESE, a_job
from wan_ui.edit.handlers import EditHandlers, _with_proposed_size, page_settings
from wan_ui.edit.html import clip_presets, edit_html
from wan_ui.edit.modes import MODES, loaded_settings, read_request, request_mode, supported_modes
from wan_ui.form.unused_settings import unused_settings_text
from wan_ui.i18n.english import ENGLISH
from wan_ui.services.media import BEFORE

VACE = "wan2.1-vace-1.3b-480p"
SIZE = (128, 96)  # width and height of the clip
SETTINGS = {"resolution": "256x256", "steps": 2, "seed": 1}
WANTED = {"preset": VACE, "prompt": "a red square", "settings": SETTINGS}
PART = {"start": 0.5, "num_frames": 5}


CALLER = SimpleNamespace(texts=ENGLISH, owner="visitor", queue_limits=None, is_operator=False)


def handlers(engine: Engine) -> EditHandlers:
    """Return handlers that need no page."""
    return EditHandlers(context=SimpleNamespace(engine=engine), panel=None, stage=None, message=None)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = Engine(tmp_path_factory.mktemp("ways"), "square", pipeline="tests.fake_pipeline")
    yield engine
    engine.close()


@pytest.fixture
def clip(tmp_path, upload) -> str:
    return upload(counting_clip(tmp_path / "clip.mp4", 32, 16, SIZE))


@pytest.fixture
def picture(tmp_path, upload):
    """Return a function that creates a grey image with a name and a size."""

    def make(name: str, size: tuple[int, int] = SIZE, grey: int = 255) -> str:
        Image.new("L", size, grey).save(tmp_path / name)
        return upload(tmp_path / name)

    return make


def refused(client: TestClient, path: str, body: object) -> str:
    """Return the error, one sentence, that answers a request."""
    answer = client.post(path, content=json.dumps(body))
    assert set(answer.json()) == {"error"}
    told = answer.json()["error"]
    assert told.endswith((".", "?")) and told.count(". ") <= 1 and "\n" not in told and "/" not in told
    return told


def request_from(given: dict) -> GenerationRequest:
    """Return the request of a page's values, without opening files."""
    preset, settings = read_request(given)
    return GenerationRequest.from_preset(preset, **settings)


def named(request: GenerationRequest) -> str:
    """Return the sentence that names the settings which the view does not load."""
    return unused_settings_text(request, loaded_settings(request), ENGLISH)


def left(engine: Engine) -> list[str]:
    """Return the names of all files and folders of jobs."""
    return sorted(
        str(path) for path in engine.settings.data_dir.rglob("*") if "engine" not in path.name and path.suffix != ".log"
    )


def made(engine: Engine, client: TestClient, **given) -> GenerationRequest:
    """Generate, and return the request that reached the pipeline."""
    answer = client.post("/studio/edit", json=WANTED | given).json()
    assert set(answer) == {"job"}, answer
    *_, (_, final) = engine.event_log.follow(answer["job"])
    assert final.result.request.inputs().keys() == engine.jobs.find(answer["job"]).request.inputs().keys()
    return final.result.request


def names(paths) -> list[str]:
    return [Path(path).name for path in paths]


def test_what_is_followed_comes_as_control_with_its_kind(engine, visitor, clip):
    for kind in ("edges", "grey", "as-is"):
        request = made(engine, visitor(), way="follow", clip=clip, control_kind=kind, control_scale=0.5, **PART)
        assert (request.control_kind, request.control_scale, request.trim, request.video) == (kind, 0.5, (0.5, 0.8125), None)
        assert names([request.control]) == ["control.mp4"] and request_mode(request) == "follow"


def test_what_is_painted_comes_as_a_mask_of_the_clips_size(engine, visitor, clip, picture):
    mask = picture("mask.png")
    request = made(engine, visitor(), way="paint", clip=clip, mask=mask, keeps_pixels=False, **PART)
    assert names([request.video, request.mask]) == ["input-video.mp4", "mask.png"] and not request.keeps_pixels
    assert load_checked_image(request.mask).size == SIZE and request_mode(request) == "paint"


def test_a_clip_is_a_mask_too(engine, visitor, clip, tmp_path, upload):
    mask = upload(counting_clip(tmp_path / "moving.mp4", 32, 16, SIZE))
    told = visitor().post("/studio/edit/mask", json={"mask": mask, "clip": clip}).json()
    assert told == {"path": mask, "name": "moving.mp4", "is_picture": False}
    assert names([made(engine, visitor(), way="paint", clip=clip, mask=mask, **PART).mask]) == ["mask.mp4"]


def test_margins_references_and_the_pixels_that_stay(engine, visitor, clip, picture):
    hats = [picture("hat.png", (40, 50)), picture("shoe.png", (60, 20))]
    request = made(engine, visitor(), way="widen", clip=clip, margins=[64, 0, 32, 16], references=hats, **PART)
    assert (request.margins, request.keeps_pixels) == ((64, 0, 32, 16), True) and request_mode(request) == "widen"
    assert [load_checked_image(path).size for path in request.references] == [(40, 50), (60, 20)]


def test_a_clip_continues_after_its_end_or_before_its_beginning(engine, visitor, clip):
    after = {"way": "extend", "clip": clip, "start": 0.5, "end": 1.5, "num_frames": 9, "extend": "after", "overlap": 5}
    request = made(engine, visitor(), **after)
    assert (request.extend, request.overlap, request.num_frames, request.trim) == ("after", 5, 9, (0.5, 1.5))
    request = made(engine, visitor(), **after | {"extend": "before", "end": None, "overlap": None})
    assert (request.extend, request.overlap, request.trim) == ("before", 5, None) and request_mode(request) == "extend"


def test_the_demo_model_regenerates_a_clip_or_continues_after_it(engine, visitor, clip):
    assert supported_modes(find_preset("wan-tiny")) == ("anew", "extend")
    given = WANTED | {"preset": "wan-tiny", "way": "extend", "clip": clip, "start": 0.5, "end": 1.5}
    given |= {"settings": SETTINGS | {"resolution": "96x96"}}
    request = made(engine, visitor(), **given, num_frames=9, extend="after", overlap=5)
    assert (request.extend, request.overlap, request.strength, request_mode(request)) == ("after", 5, None, "extend")
    before = left(engine)
    assert "is not supported by wan-tiny" in refused(
        visitor(), "/studio/edit", given | {"num_frames": 9, "extend": "before", "overlap": 5}
    )
    assert "must be one of anew, extend for wan-tiny" in refused(visitor(), "/studio/edit", given | {"way": "paint"})
    assert left(engine) == before


def test_key_frames_lie_in_the_order_of_their_places(engine, visitor, picture):
    keys = [{"frame": 8, "image": picture("b.png", (30, 30))}, {"frame": 0, "image": picture("a.png", (20, 20))}]
    request = made(engine, visitor(), way="keys", num_frames=9, keyframes=keys)
    assert request.keyframe_at == (0, 8) and [load_checked_image(path).size for path in request.keyframes] == [(20, 20), (30, 30)]
    request = made(engine, visitor(), way="keys", num_frames=9, references=[picture("hat.png")])
    assert not request.keyframes and len(request.references) == 1 and request_mode(request) == "keys"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"way": "anew"}, "must be one of follow, paint"),
        ({"way": ["paint"]}, "must be one of follow, paint"),
        ({"control_kind": "pose"}, "Control_kind='pose' is refused"),
        ({"control_scale": 10**400}, "must be a number"),
        ({"control_scale": 7}, "must be between 0 and 2"),
        ({"clip": "/etc/passwd"}, "Clip must be an uploaded file"),
        ({"start": 1.9}, "it has 1 frame at"),
        ({"num_frames": 6}, "must be 5 or 9"),
        ({"references": "x"}, "must be a list"),
        ({"references": ["x"] * 9}, "at most 8"),
        ({"references": ["/etc/passwd"]}, "must be an uploaded file"),
        ({"way": "paint"}, "Mask must be an uploaded file"),
        ({"way": "paint", "mask": "/etc/passwd"}, "Mask must be an uploaded file"),
        ({"way": "widen"}, "four numbers of pixels"),
        ({"way": "widen", "margins": [1, 2, 3]}, "four numbers of pixels"),
        ({"way": "widen", "margins": [0, 0, 0, 0]}, "0 or more and not all 0"),
        ({"way": "widen", "margins": [200, 0, 200, 0]}, "must leave 16 pixels of the width"),
        ({"way": "widen", "margins": [10**400, 0, 0, 0]}, "four numbers of pixels"),
        ({"way": "extend"}, "Extend is missing"),
        ({"way": "extend", "extend": "sideways"}, "Extend='sideways' is refused"),
        ({"way": "extend", "extend": "after", "overlap": 5}, "must be at least 1 and less"),
        ({"way": "extend", "extend": "after", "end": 0.6, "overlap": 4}, "fewer frames than overlap=4"),
        ({"way": "keys"}, "needs a keyframe or a reference image"),
        ({"way": "keys", "keyframes": {"frame": 0}}, "must each have a frame number"),
        ({"way": "keys", "keyframes": [{"frame": "0", "image": "x"}]}, "must each have a frame number"),
        ({"way": "keys", "keyframes": [{"frame": 0, "image": "/etc/passwd"}]}, "must be an uploaded file"),
        ({"way": "keys", "keyframes": [{"frame": 0, "image": "x"}] * 1000}, "at most 321"),
    ],
)
def test_what_does_not_go_together_is_refused_with_one_sentence_and_leaves_nothing(engine, visitor, clip, changes, words):
    before = left(engine)
    assert words in refused(visitor(), "/studio/edit", WANTED | PART | {"way": "follow", "clip": clip} | changes)
    assert left(engine) == before


@pytest.mark.parametrize(("places", "words"), [((0, 9), "0 to 8"), ((-1, 4), "0 to 8"), ((4, 4), "two images for frame 4")])
def test_key_frames_past_the_end_or_at_one_place_are_refused(engine, visitor, picture, places, words):
    before, image = left(engine), picture("a.png")
    keys = [{"frame": place, "image": image} for place in places]
    told = refused(visitor(), "/studio/edit", WANTED | {"way": "keys", "num_frames": 9, "keyframes": keys})
    assert words.lower() in told.lower() and left(engine) == before


@pytest.mark.parametrize(
    ("size", "grey", "words"), [((64, 48), 255, "128x96"), ((96, 128), 255, "128x96"), (SIZE, 0, "black everywhere")]
)
def test_a_painted_mask_of_another_size_or_without_paint_is_refused(engine, visitor, clip, picture, size, grey, words):
    before = left(engine)
    given = WANTED | PART | {"way": "paint", "clip": clip, "mask": picture("mask.png", size, grey)}
    assert words in refused(visitor(), "/studio/edit", given)
    assert left(engine) == before


def test_a_mask_is_looked_at_when_it_is_brought(visitor, clip, picture, tmp_path, upload):
    told = visitor().post("/studio/edit/mask", json={"mask": (mask := picture("mask.png", (64, 48))), "clip": clip}).json()
    assert told == {"path": mask, "name": "mask.png", "is_picture": True}, "of another size, but of the clip's shape"
    other = picture("other.png", (64, 64))
    assert "must have the shape of the clip, 128x96" in refused(visitor(), "/studio/edit/mask", {"mask": other, "clip": clip})
    (tmp_path / "mask.txt").write_text("white")
    notes = upload(tmp_path / "mask.txt")
    assert "must be a video" in refused(visitor(), "/studio/edit/mask", {"mask": notes, "clip": clip})
    assert not Path(notes).exists() and Path(other).exists()
    assert "Mask must be an uploaded file" in refused(visitor(), "/studio/edit/mask", {"mask": "/etc/passwd", "clip": clip})


def test_a_picture_is_looked_at_when_it_is_added(visitor, clip, picture, tmp_path, upload):
    hat = picture("hat.png", (40, 50))
    told = visitor().post("/studio/edit/picture", json={"picture": hat}).json()
    assert told == {"path": hat, "name": "hat.png", "width": 40, "height": 50}
    (tmp_path / "hat.exe").write_text("MZ" * 50)
    program = upload(tmp_path / "hat.exe")
    refused(visitor(), "/studio/edit/picture", {"picture": program})
    assert not Path(program).exists()
    refused(visitor(), "/studio/edit/picture", {"picture": clip})
    assert Path(clip).exists(), "somebody's clip"
    assert "must be an uploaded file" in refused(visitor(), "/studio/edit/picture", {"picture": "/etc/passwd"})


def test_what_a_visitor_has_brought_is_nobody_elses(engine, visitor, clip, picture):
    request = made(
        engine, visitor("A"), way="paint", clip=clip, mask=picture("mask.png"), references=[picture("hat.png")], **PART
    )
    job_id = Path(request.mask).parent.name
    for path in (request.mask, request.video, request.references[0]):
        assert visitor("B").get(f"/studio/media/{job_id}/{Path(path).name}").status_code == 404
        assert visitor("A").get(f"/studio/media/{job_id}/{Path(path).name}").status_code == 200
    stolen = WANTED | PART | {"way": "paint", "clip": clip, "mask": request.mask}
    assert "Mask must be an uploaded file" in refused(visitor("B"), "/studio/edit", stolen)
    assert "must be an uploaded file" in refused(visitor("B"), "/studio/edit/picture", {"picture": request.references[0]})


def test_an_estimate_needs_no_mask_yet(visitor, clip):
    def estimated(**changes) -> str:
        return (
            visitor().post("/studio/edit/estimate", json=WANTED | PART | {"way": "paint", "clip": clip} | changes).json()["html"]
        )

    assert estimated() and estimated(prompt="") and not estimated(num_frames=6) and not estimated(way="widen")


def test_the_video_is_compared_with_the_clip_where_that_lies_in_it(engine, visitor, clip):
    def frames(**given) -> np.ndarray:
        request = made(engine, visitor(), clip=clip, **given)
        video = request.video or request.control
        answer = visitor().get(f"/studio/media/{Path(video).parent.name}/{BEFORE}")
        path = Path(video).with_name("fetched.mp4")
        path.write_bytes(answer.content)
        return np.stack(list(read_frames(path)))[..., 0].astype(int)

    whole = frames(way="follow", control_kind="edges", start=0.0, num_frames=9)
    assert whole.shape == (9, 256, 256) and whole[8].mean() > whole[0].mean() + 20, "the clip itself, which gets lighter"
    wide = frames(way="widen", margins=[64, 0, 64, 0], start=0.0, num_frames=9)
    assert wide.shape == whole.shape and abs(wide[0, :, :60] - 128).max() < 8
    assert abs(wide[8, :, 80:176].mean() - whole[8].mean()) < 8
    on = frames(way="extend", extend="after", overlap=5, start=0.0, end=1.0, num_frames=9)
    assert on.shape == whole.shape and abs(on[5:] - 128).max() < 8 and abs(on[0] - 128).mean() > 20


def test_its_settings_come_back_with_its_files(engine, visitor, clip, picture):
    keys = [{"frame": 0, "image": picture("a.png")}, {"frame": 8, "image": picture("b.png", (30, 40))}]
    request = made(engine, visitor(), way="keys", num_frames=9, keyframes=keys, references=[picture("hat.png", (20, 20))])
    filled = engine.sandbox.run_steps(handlers(engine)._load_settings(engine.jobs.find(Path(request.keyframes[0]).parent.name)))
    assert filled["clip"] is None and filled["way"] == "keys" and [one["frame"] for one in filled["keyframes"]] == [0, 8]
    assert all(Path(one["path"]).is_relative_to(get_upload_folder()) for one in [*filled["keyframes"], *filled["references"]])
    request = made(engine, visitor(), way="paint", clip=clip, mask=picture("mask.png"), keeps_pixels=False, **PART)
    filled = engine.sandbox.run_steps(handlers(engine)._load_settings(engine.jobs.find(Path(request.mask).parent.name)))
    assert filled["clip"]["width"] == 128 and filled["mask"]["is_picture"] and filled["keeps_pixels"] is False
    json.dumps(filled)
    request = made(engine, visitor(), way="extend", clip=clip, extend="after", overlap=5, start=0.0, num_frames=9)
    assert page_settings(request, 2.0) | {"start": 1.6875, "end": 2.0, "overlap": 5, "extend": "after"} == page_settings(
        request, 2.0
    )


def test_any_video_of_ours_becomes_the_clip(engine, tmp_path):
    job = a_job(folder=tmp_path, prompt="a red square")
    counting_clip(tmp_path / "video.mp4", 33, 16, SIZE)
    filled = engine.sandbox.run_steps(handlers(engine)._load_as_clip(job, find_preset("wan-tiny")))
    assert (filled["preset"], filled["way"], filled["prompt"]) == ("wan-tiny", "anew", "a red square")
    assert filled["settings"]["seed"] is None
    assert Path(filled["clip"]["path"]).is_relative_to(get_upload_folder()) and filled["clip"]["width"] == SIZE[0]
    assert (filled["start"], filled["end"]) == (0.0, filled["clip"]["seconds"]) and json.loads(json.dumps(filled))


def test_only_who_may_see_a_video_takes_it_as_a_clip_and_one_that_is_gone_is_said(tmp_path, engine):
    job, message = a_job(folder=tmp_path), object()
    caller = CALLER
    context = SimpleNamespace(
        identify_caller=lambda request: caller,
        find_job=lambda wanted, caller: job if wanted == "mine" else None,
        preset_filter=lambda caller=None: lambda preset: preset.name == "wan-tiny",
        engine=engine,
    )
    handlers = EditHandlers(context=context, panel=object(), stage=None, message=message)

    def told(wanted: str):
        return asyncio.run(handlers.act({}, gr.Request(), SimpleNamespace(_data={"what": "clip", "job": wanted, "value": ""})))

    assert told("another's") == {message: gr.skip()}
    assert "the video is no longer there" in told("mine")[message].lower()
    counting_clip(tmp_path / "video.mp4", 33, 16, SIZE)
    assert ENGLISH.loaded_as_clip in told("mine")[message]


def test_what_would_fit_is_asked_of_the_same_part(engine, visitor, clip):
    request = made(engine, visitor(), way="follow", clip=clip, start=0.5, num_frames=9)
    size = {"width": 128, "height": 128, "num_frames": 5}
    fitting = _with_proposed_size(page_settings(request), request, size)
    assert (fitting["end"], fitting["num_frames"], fitting["settings"]["resolution"]) == (0.5 + 5 / 16, 5, "128x128")
    on = made(engine, visitor(), way="extend", clip=clip, extend="after", overlap=5, start=0.5, num_frames=9)
    assert _with_proposed_size(page_settings(on), on, size)["end"] == page_settings(on)["end"]


def test_the_view_shows_only_ways_that_a_model_can_go():
    anew, vace, ltx = find_preset("wan2.1-t2v-1.3b-480p"), find_preset(VACE), find_preset("ltx-2.3-704p")
    assert (
        supported_modes(anew) == ("anew",)
        and supported_modes(ltx) == ("sound", "follow", "extend", "keys")
        and {"anew", "sound", "animate"} == {*MODES} - {*supported_modes(vace)}
    )
    for texts in (ENGLISH, CHINESE):
        assert 'class="choose" hidden' in edit_html([anew], texts)
        both = edit_html(clip_presets(lambda preset: preset.name in ("wan-tiny", "wan-tiny-animate", VACE, ltx.name)), texts)
        assert all(f'value="{way}"' in both for way in MODES) and 'class="choose">' in both and texts.edit_way_paint in both


def test_a_sound_is_made_for_a_part_of_a_clip(tmp_path, monkeypatch):
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(b"clip")
    monkeypatch.setattr("wan_ui.gateway.uploads.get_upload_folder", lambda: str(tmp_path))
    preset = find_preset("ltx-2.3-704p")
    given = {"preset": preset.name, "prompt": "rain on a tin roof", "way": "sound", "clip": str(clip), "start": 0.5}
    request = request_from(given | {"num_frames": 49})
    assert (request.make, request.video, request.strength, request.num_frames) == ("sound", str(clip), None, 49)
    assert request_mode(request) == "sound" and not named(request) and request.trim == (0.5, 0.5 + 49 / 24)


def test_key_frames_of_a_model_without_control_blocks(tmp_path, monkeypatch):
    for name in ("a.png", "b.png"):
        Image.new("RGB", (20, 20)).save(tmp_path / name)
    monkeypatch.setattr("wan_ui.gateway.uploads.get_upload_folder", lambda: str(tmp_path))
    preset, keys = (
        find_preset("ltx-2.3-704p"),
        [{"frame": 48, "image": str(tmp_path / "b.png")}, {"frame": 7, "image": str(tmp_path / "a.png")}],
    )
    given = {"preset": preset.name, "way": "keys", "num_frames": 49, "keyframes": keys, "control_scale": 1, "references": []}
    request = request_from(given | {"prompt": "rain on a tin roof"})
    assert (request.keyframe_at, request.num_frames, request.references) == ((7, 48), 49, ())
    assert request_mode(request) == "keys" and not named(request) and page_settings(request)["way"] == "keys"


def test_what_one_way_does_not_show_is_named():
    preset = find_preset(VACE)
    part = {"trim": (0.0, 1.0625), "num_frames": 17, "prompt": "x"}
    both = GenerationRequest.from_preset(preset, video="/a.mp4", margins=(64, 0, 64, 0), mask="/m.png", control="/b.mp4", **part)
    assert request_mode(both) == "widen" and named(both) == "Not used here: mask m.png, control clip b.mp4."
    moved = GenerationRequest.from_preset(preset, video="/a.mp4", mask="/m.png", references=("/hat.png",), **part)
    assert named(moved) == ""


def test_a_clip_beside_the_video_is_followed_with_a_lora(tmp_path, monkeypatch):
    clip = tmp_path / "pose.mp4"
    clip.write_bytes(b"clip")
    monkeypatch.setattr("wan_ui.gateway.uploads.get_upload_folder", lambda: str(tmp_path))
    preset = find_preset("ltx-2.3-704p")
    given = {"way": "follow", "clip": str(clip), "start": 0.5, "num_frames": 49, "control_kind": "edges", "references": []}
    given |= {"preset": preset.name, "prompt": "a dancer", "control_scale": 0.8, "control_downscale": 2}
    given |= {"settings": {"loras": "pose.safetensors = 0.9"}}
    request = request_from(given)
    assert (request.control, request.control_kind, request.control_scale) == (str(clip), "edges", 0.8)
    assert (request.control_downscale, request.num_frames, request.loras[0].source) == (2, 49, "pose.safetensors")
    assert request_mode(request) == "follow" and not named(request)
    filled = page_settings(request)
    assert (filled["control_downscale"], filled["settings"]["loras"]) == (2, "pose.safetensors = 0.9")
    plain = request_from(given | {"settings": {}, "control_scale": None})
    assert plain.loras == preset.loras and plain.control_scale == 1 and filled["way"] == "follow"
    loras = ({"settings": {"loras": 5}}, {"settings": {"loras": "pose = x y z"}})
    for wrong in (*loras, {"control_downscale": "2"}, {"control_scale": 2.0}):
        with pytest.raises(RequestError):
            request_from(given | wrong)
