"""Tests of the endpoint for programs: its parts, and calls through a running studio."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from gradio.utils import get_upload_folder

from backend.errors import ImageError, RequestError, SoundError, StudioError
from backend.schemas.events import Proposal
from backend.settings import PROJECT_FOLDER
from tests.clip_files import counting_clip
from tests.wan_ui.conftest import model_does_not_matter
from wan_ui.components.progress import StageView
from wan_ui.gateway.uploads import uploaded_path
from wan_ui.routes.api import GenerateArguments, _split_again, finished_video, split_files

META = {"meta": {"_type": "gradio.FileData"}}


@pytest.fixture
def studio(every_studio):
    return every_studio


def wanted(**changes) -> GenerateArguments:
    return GenerateArguments(**dict(prompt="a red circle", preset="wan-tiny", image=None, settings={}) | changes)


def test_a_step_after_the_video_may_make_it_larger():
    request = wanted(settings={"upscale": 4, "upscaler": "x4plus"}).to_request()
    assert (request.upscale, request.upscaler, request.finished_video) == (4, "x4plus", None)
    for settings in ({"upscale": 3}, {"upscale": "4x"}, {"upscaler": "x4plus"}, {"upscale": 2, "upscaler": "/etc/passwd"}):
        with pytest.raises(RequestError):
            wanted(settings=settings).to_request()
    with pytest.raises(RequestError, match="settings has 'finished_video'"):
        wanted(settings={"upscale": 2, "finished_video": "/etc/passwd"}).to_request()


def test_settings_replace_the_presets_own():
    request = wanted(settings={"steps": 3, "seed": 1, "guidance": [2.0]}).to_request()
    assert (request.steps, request.seed, request.guidance, request.task) == (3, 1, (2.0,), "t2v")


def test_windows_and_shots_are_settings_too():
    long = wanted(settings={"num_frames": 65, "context_windows": False}).to_request()
    assert long.window_frames is None
    story = wanted(
        prompt="", settings={"shots": [{"prompt": "a red circle", "seconds": 1}, {"prompt": "a blue star"}]}
    ).to_request()
    assert (story.prompt, story.total_frames) == ("a red circle", 29)
    with pytest.raises(RequestError, match="shot 1 has no prompt"):
        wanted(settings={"shots": [{"seconds": 1}]}).to_request()


def test_a_films_sound_is_an_uploaded_file_and_its_times_are_settings():
    story = {"shots": [{"prompt": "a red circle"}], "track_volume": 0.5}
    with pytest.raises(SoundError, match="sound must be an uploaded file"):
        wanted(settings=story, files={"track": {"path": "/etc/hostname", **META}}).to_request()
    with pytest.raises(RequestError, match="a track's times were given but need track"):
        wanted(settings=story).to_request()
    with pytest.raises(RequestError, match="track='a.wav' must be a file"):
        GenerateArguments.parse_arguments("x", "", None, {}, {"track": "a.wav"})


def test_figures_are_a_list_of_names_with_uploaded_pictures():
    story = {"shots": [{"prompt": "Anna walks"}]}
    for given, words in (
        ([{"name": "Anna", "image": {"path": "/etc/hostname", **META}}], "image must be an uploaded file"),
        ([{"name": "Anna"}], "figures has {'name': 'Anna'} and must have"),
        (["Anna"], "figures has 'Anna' and must have"),
    ):
        with pytest.raises(StudioError, match=words):
            wanted(settings=story, files={"figures": given}).to_request()
    with pytest.raises(RequestError, match="figures='Anna' must be a list"):
        GenerateArguments.parse_arguments("x", "", None, {}, {"figures": "Anna"})
    with pytest.raises(RequestError, match="settings has 'figure_images'"):
        wanted(settings=story | {"figure_images": ["/etc/hostname"]}).to_request()


def test_programs_may_reuse_steps_by_plan_and_are_refused_in_one_sentence():
    assert wanted(settings={"mag_cache": 0.12}).to_request().mag_cache == 0.12
    with pytest.raises(RequestError, match="^mag_cache cannot be combined with cfg_zero; leave one out$"):
        wanted(settings={"mag_cache": 0.12, "cfg_zero": True}).to_request()
    with pytest.raises(RequestError, match="mag_ratios"):
        wanted(settings={"mag_cache": 0.12, "mag_ratios": [1.0, 1.0]}).to_request()


def test_a_storyboard_to_be_made_again_is_named_by_its_job_and_its_shot():
    assert _split_again({"steps": 3, "again": {"job": "x", "from_shot": 2}}) == ({"steps": 3}, ("x", 2))
    assert _split_again({"steps": 3}) == ({"steps": 3}, None) and _split_again("x") == ("x", None)
    for again in ("x", {"job": 1, "from_shot": 2}, {"job": "x"}, {"job": "x", "from_shot": "2"}):
        with pytest.raises(RequestError, match="again="):
            _split_again({"again": again})


@pytest.mark.parametrize("name", ["image", "last_image", "video", "preset", "loras", "task"])
def test_settings_cannot_smuggle_in_paths_or_other_fields(name):
    with pytest.raises(RequestError, match=name):
        wanted(settings={name: "/etc/passwd"}).to_request()


def test_a_script_for_a_live_video_is_read_and_checked():
    cues = [{"block": 2, "action": "left"}, {"block": 4, "prompt": "a blue square"}]
    request = GenerateArguments.parse_arguments("a red circle", "wan-live-tiny", None, {"cues": cues}).to_request()
    assert [cue.model_dump(exclude_none=True) for cue in request.cues] == cues
    for wrong in ([{"block": 1, "path": "/etc/passwd"}], [{"block": "x"}], "left", [{"block": 1, "action": "jump"}], [1]):
        with pytest.raises(RequestError):
            GenerateArguments.parse_arguments("a red circle", "wan-live-tiny", None, {"cues": wrong}).to_request()
    with pytest.raises(RequestError, match="is not a live preset"):
        GenerateArguments.parse_arguments("a red circle", "wan-tiny", None, {"cues": cues}).to_request()


def test_what_vace_is_shown_comes_as_uploaded_files(tmp_path):
    """Images and clips in settings must be uploads of this server."""
    folder = Path(get_upload_folder()) / "vace"
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for name in ("v.mp4", "m.png", "r.png", "k.png"):
        (folder / name).write_bytes(b"x")
        files[name] = {"path": str(folder / name), **META}
    settings = {"video": files["v.mp4"], "mask": files["m.png"], "references": [files["r.png"]], "control_scale": 0.5}
    settings |= {"keyframes": [{"frame": 8, "image": files["k.png"]}], "margins": [16, 0, 0, 0]}

    def made(**changes):
        return GenerateArguments.parse_arguments(
            "x", "wan2.1-vace-1.3b-480p", None, *split_files(settings | changes)
        ).to_request()

    request = made()
    assert (request.video, request.mask) == (str(folder / "v.mp4"), str(folder / "m.png"))
    assert (request.references, request.keyframes) == ((str(folder / "r.png"),), (str(folder / "k.png"),))
    assert (request.keyframe_at, request.margins, request.control_scale) == ((8,), (16, 0, 0, 0), 0.5)
    beside = {"control": files["v.mp4"], "control_kind": "edges", "control_downscale": 2}
    request = GenerateArguments.parse_arguments("x", "ltx-2.3-704p", None, *split_files(beside)).to_request()
    assert (request.control, request.control_kind, request.control_downscale) == (str(folder / "v.mp4"), "edges", 2)
    elsewhere = {"path": "/etc/passwd", **META}
    for wrong in ({"mask": elsewhere}, {"references": [elsewhere]}, {"keyframes": [{"frame": 0, "image": elsewhere}]}):
        with pytest.raises(RequestError, match="must be an uploaded file"):
            made(**wrong)
    for wrong in ({"mask": "m.png"}, {"references": files["r.png"]}, {"keyframes": [files["k.png"]]}, {"keyframes": [1]}):
        with pytest.raises(RequestError, match="must"):
            made(**wrong)
    with pytest.raises(RequestError, match="keyframe_at.*valid integer"):
        made(keyframes=[{"frame": "/etc/passwd", "image": files["k.png"]}])


def test_where_memory_runs_out_the_error_says_what_would_fit():
    proposal = Proposal(width=96, height=96, num_frames=17, bytes_per_device=5)
    view = StageView(phase="failed", cause="Too large", fix=f"It would fit at {proposal}", proposals=(proposal,))
    with pytest.raises(StudioError, match="Too large; It would fit at 96x96 with 17 frames"):
        finished_video(view)


def test_only_uploaded_files_are_opened():
    folder = Path(get_upload_folder())
    (folder / "abc").mkdir(parents=True, exist_ok=True)
    (folder / "abc" / "a.png").touch()
    assert uploaded_path({"path": str(folder / "abc" / "a.png"), **META}) == (folder / "abc" / "a.png").resolve()
    missing = str(folder / "abc" / "missing.png")
    for path in ("/etc/passwd", str(folder / ".." / "a.png"), str(folder), "a.png", str(folder / "abc"), missing):
        with pytest.raises(ImageError):
            uploaded_path({"path": path, **META})
    with pytest.raises(ImageError):
        uploaded_path({"path": str(folder / "abc" / "a.png")})


@pytest.mark.browser
@model_does_not_matter
def test_a_program_gets_a_video_and_its_facts(studio, picture):
    import gradio_client

    client = gradio_client.Client(studio.url, verbose=False)
    video, facts = client.predict(
        "a red circle", "", gradio_client.handle_file(str(picture)), {"steps": 2, "seed": 3}, api_name="/generate"
    )
    assert Path(video).read_bytes()[4:8] == b"ftyp"
    assert (facts["seed"], facts["width"], facts["num_frames"]) == (3, 96, 17)
    with pytest.raises(Exception, match="prompt is empty"):
        client.predict(" ", api_name="/generate")


@pytest.mark.browser
@model_does_not_matter
def test_a_program_sees_the_progress_while_its_video_is_generated(studio):
    import gradio_client

    client = gradio_client.Client(studio.url, verbose=False)
    job = client.submit("a red circle", "", None, {"steps": 20}, api_name="/generate")
    *shown, (video, facts) = list(job)
    assert shown and all(path is None for path, _ in shown) and Path(video).read_bytes()[4:8] == b"ftyp"
    progress = [one for _, one in shown]
    assert {one["job_id"] for one in progress} == {facts["job_id"]} and all(one["text"] for one in progress)
    fractions = [one["fraction"] for one in progress]
    assert fractions == sorted(fractions) and fractions[-1] < 1 and "denoising" in {one["phase"] for one in progress}
    assert job.result() == (video, facts)
    assert "Yields the progress" in client.view_api(return_format="dict")["named_endpoints"]["/generate"]["description"]


@pytest.mark.browser
@model_does_not_matter
def test_plain_http_gets_the_video_in_one_answer_or_the_progress_as_events(studio):
    body = json.dumps({"data": ["a red circle", "", None, {"steps": 2}]}).encode()

    def call(path: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"{studio.url}gradio_api/{path}", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return answer.read()

    video, facts = json.loads(call("run/generate", body))["data"]
    assert video["url"].endswith("video.mp4") and facts["num_frames"] == 17
    event = json.loads(call("call/generate", body))["event_id"]
    lines = call(f"call/generate/{event}").decode().split("\n\n")
    events = [
        (kind.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for kind, data in map(str.splitlines, filter(None, lines))
    ]
    assert {kind for kind, _ in events} <= {"generating", "complete", "heartbeat"} and events[-1][0] == "complete"
    assert events[-1][1][0]["url"].endswith("video.mp4")


@pytest.mark.browser
@model_does_not_matter
def test_a_program_has_a_clip_regenerated(studio, tmp_path):
    import gradio_client

    clip = gradio_client.handle_file(str(counting_clip(tmp_path / "clip.mp4", 32, 16)))
    client = gradio_client.Client(studio.url, verbose=False)
    settings = {"steps": 4, "strength": 0.5, "trim": [0.5, 1.5625]}
    _, facts = client.predict("a red circle", "wan-tiny", None, settings | {"video": clip}, api_name="/generate")
    assert facts["num_frames"] == 17
    with pytest.raises(Exception, match="must be within the 2.00 s"):
        client.predict("a red circle", "wan-tiny", None, {"video": clip, "trim": [1.5, 2.5625]}, api_name="/generate")
    with pytest.raises(Exception, match="strength was given but needs a clip"):
        client.predict("a red circle", "wan-tiny", None, {"strength": 0.5}, api_name="/generate")


@pytest.mark.browser
@model_does_not_matter
def test_a_programs_video_is_served_from_its_job_not_from_a_copy(studio):
    import gradio_client

    client = gradio_client.Client(studio.url, verbose=False, download_files=False)
    video, facts = client.predict("a red circle", "", None, {"steps": 2}, api_name="/generate")
    assert video["url"].startswith(f"{studio.url}studio/video/{facts['job_id']}/")
    with urllib.request.urlopen(video["url"]) as answer:
        assert answer.read()[4:8] == b"ftyp"


@pytest.mark.browser
def test_generate_is_the_only_endpoint_and_job_files_are_not_served_by_path(studio):
    with urllib.request.urlopen(f"{studio.url}gradio_api/info") as answer:
        assert list(json.load(answer)["named_endpoints"]) == ["/generate"]
    for path in ("/etc/passwd", str(Path(__file__).resolve()), str(PROJECT_FOLDER / "app.py")):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{studio.url}gradio_api/file={path}")
