"""Check which command lines are accepted, and the settings that they produce."""

import pytest

from backend.cli.arguments import hosts_from_arguments, model_from_arguments, request_from_arguments, worker_shares
from backend.cli.command_line import build_parser, parse
from backend.cli.reference import list_parsers
from backend.errors import RequestError
from backend.shares import Share


def refusal(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as caught:
        parse(list(words))
    assert caught.value.code == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1
    return told.err


@pytest.mark.parametrize("words", [[], ["--port", "8000"], ["serve"]])
def test_no_command_means_serve(words):
    assert parse(words).command == "serve"


def test_without_limits_nothing_is_limited():
    assert (parse([]).keep_days, parse([]).keep_gb) == (None, None)
    assert (parse([]).resident_gb, parse(["--resident-gb", "0"]).resident_gb) == (None, (0.0, 0.0))
    assert parse(["--resident-gb", "100,0.5"]).resident_gb == (100.0, 0.5)
    assert (parse(["--keep-days", "30"]).keep_days, parse(["--keep-gb", "0.5"]).keep_gb) == (30.0, 0.5)


def test_serve_understands_its_options(tmp_path):
    options = parse(["--host", "0.0.0.0", "--port", "80", "--share", "--auth", "ann:se:cret", "--data-dir", str(tmp_path)])
    assert (options.host, options.port, options.share, options.auth) == ("0.0.0.0", 80, True, ("ann", "se:cret"))
    assert options.data_dir == tmp_path


def test_the_browser_opens_only_if_it_is_asked_for():
    assert not parse([]).opens_browser and parse(["--browser"]).opens_browser


def test_serve_starts_one_worker_unless_it_is_told_otherwise():
    assert (parse([]).workers, parse(["--workers", "2"]).workers) == (1, 2)
    assert worker_shares(parse([])) == (Share(),)
    with pytest.raises(RequestError, match="workers=-1 must be "):
        worker_shares(parse(["--workers", "-1"]))


def test_workers_are_this_machines_or_a_clusters():
    assert (parse([]).cluster, parse(["--cluster", "head:6379"]).cluster) == (None, "head:6379")
    with pytest.raises(RequestError, match="workers=2 cannot be given with --cluster"):
        worker_shares(parse(["--workers", "2", "--cluster", "auto"]))
    with pytest.raises(RequestError, match="hosts=2 cannot be given with --cluster"):
        hosts_from_arguments(parse(["--hosts", "2", "--cluster", "auto"]))


def test_generate_understands_every_option():
    words = (
        "generate --preset wan-tiny --prompt circle --negative-prompt star --width 96 --height 128 --frames 17 "
        "--fps 8 --steps 4 --guidance 2.5 --flow-shift 5 --seed 9 --solver euler"
    ).split()
    made = request_from_arguments(parse(words))
    assert (made.prompt, made.negative_prompt, made.width, made.height, made.num_frames) == ("circle", "star", 96, 128, 17)
    assert (made.fps, made.steps, made.guidance, made.flow_shift, made.seed) == (8, 4, (2.5,), 5.0, 9)
    assert made.solver == "euler"


def test_a_live_video_starts_from_a_picture_and_hears_prompts():
    words = "live --preset longlive-1.3b-480p --prompt fox --image /a.png --seconds 3 --prompts 2:snow --seed 1".split()
    made = request_from_arguments(parse(words))
    assert (made.task, made.image, made.num_frames) == ("i2v", "/a.png", 57)
    assert [(cue.block, cue.prompt) for cue in made.cues] == [(2, "snow")]
    assert [lora.source for lora in made.loras] == ["Efficient-Large-Model/LongLive-1.3B:models/lora.pt"]


def test_a_model_may_be_a_file_beside_a_base():
    source = "base/one+owner/two:folder/file.pt#generator"
    words = ["generate", "--preset", "wan-tiny", "--prompt", "x", "--model"]
    assert model_from_arguments(parse([*words, source])) == source
    with pytest.raises(RequestError, match="must be a checkpoint folder or an id"):
        model_from_arguments(parse([*words, "one+owner/two:file.pt"]))


def test_loras_have_a_scale_and_an_expert(tmp_path):
    words = [
        "generate",
        "--preset",
        "wan-tiny",
        "--prompt",
        "x",
        "--lora",
        str(tmp_path / "a.safetensors"),
        "--lora",
        "b.safetensors:0.5",
        "--lora",
        "me/loras:c.safetensors:-1",
        "--guidance-interval",
        "0,0.6",
        "--step-cache",
        "0.1",
    ]
    made = request_from_arguments(parse(words))
    assert [(lora.source, lora.scale, lora.expert) for lora in made.loras] == [
        ("a.safetensors", 1.0, "both"),
        ("b.safetensors", 0.5, "both"),
        ("me/loras:c.safetensors", -1.0, "both"),
    ]
    assert (made.guidance_interval, made.step_cache) == ((0.0, 0.6), 0.1)
    assert parse([*words, "--lora", "d.safetensors:2:low"]).loras[-1].expert == "low"


def test_steps_are_reused_by_plan_if_it_is_asked_for():
    words = ["generate", "--preset", "wan-tiny", "--prompt", "x", "--mag-cache"]
    assert request_from_arguments(parse([*words, "0.12"])).mag_cache == 0.12
    with pytest.raises(RequestError, match="mag_cache=3 must be between 0 and 1; 0 is off, 0.06 to 0.24 is usual"):
        request_from_arguments(parse([*words, "3"]))
    given = parse(["measure-cache", "--preset", "wan-tiny", "--steps", "8", "--output", "one.json"])
    assert (given.steps, str(given.output), given.transformer) == (8, "one.json", [])


@pytest.mark.parametrize(("words", "windows"), [([], 33), (["--windows"], 33), (["--no-windows"], None)])
def test_a_long_video_has_windows_unless_they_are_left_out(words, windows):
    long = ["generate", "--preset", "wan-tiny", "--prompt", "x", "--frames", "65"]
    assert request_from_arguments(parse([*long, *words])).window_frames == windows
    assert request_from_arguments(parse([*long[:-1], "33", *words])).window_frames is None


def test_an_image_path_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = request_from_arguments(parse(["generate", "--preset", "wan-tiny", "--prompt", "x", "--image", "a.png"]))
    assert (made.image, made.task) == (str(tmp_path / "a.png"), "i2v")


def test_a_prompt_may_be_left_out_where_the_model_needs_none():
    with pytest.raises(RequestError, match="prompt is empty and must say what the video shows"):
        request_from_arguments(parse(["generate", "--preset", "wan-tiny"]))
    driven = [
        "generate",
        "--preset",
        "wan-tiny-animate",
        "--image",
        "a.png",
        "--drive",
        "b.mp4",
        "--frames",
        "33",
        "--width",
        "96",
    ]
    assert request_from_arguments(parse([*driven, "--height", "96"])).prompt == ""


CLIP = ["generate", "--preset", "wan-tiny", "--prompt", "x", "--video", "clip.mov"]


def test_a_clip_has_a_part_and_a_strength(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = request_from_arguments(parse(CLIP))
    assert (made.video, made.strength, made.trim, made.num_frames) == (str(tmp_path / "clip.mov"), 0.8, (0.0, 1.0625), 17)
    made = request_from_arguments(parse([*CLIP, "--trim", "1.5,2.8125", "--strength", "0.5"]))
    assert (made.trim, made.num_frames, made.strength) == ((1.5, 2.8125), 21, 0.5)
    made = request_from_arguments(parse([*CLIP, "--trim", "1.5", "--frames", "33", "--fps", "8"]))
    assert (made.trim, made.num_frames) == ((1.5, 5.625), 33)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--trim", "1,2"], "trim=1,2 is 16 frames at 16 fps and must be 13 or 17"),
        (["--trim", "1,2,3"], "trim"),
        (["--strength", "2"], "strength=2 must be above 0 and at most 1"),
        (["--image", "/a.png"], "image was given together with video"),
    ],
)
def test_a_part_that_cannot_be_is_refused(words, part):
    with pytest.raises(RequestError, match=part):
        request_from_arguments(parse([*CLIP, *words]))


def test_guidance_may_have_a_value_for_each_expert():
    assert parse(["generate", "--preset", "p", "--prompt", "x", "--guidance", "4,3"]).guidance == (4.0, 3.0)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["dance"], "invalid choice: 'dance'"),
        (["decode"], "--run"),
        (["--port", "99999"], "'99999' must be a number from 1 to 65535"),
        (["--port", "-1"], "'-1' must be a number from 1 to 65535"),
        (["--auth", "ann"], "must be USER:PASSWORD"),
        (["--keep-days", "0"], "'0' must be a number above 0, such as 30 or 0.5"),
        (["--keep-gb", "nan"], "'nan' must be a number above 0"),
        (["--keep-gb", "inf"], "'inf' must be a number above 0"),
        (["--resident-gb", "5"], "'5' must be two numbers of gigabytes, such as 100,200, or 0 for none"),
        (["--resident-gb", "5,-1"], "must be two numbers of gigabytes"),
        (["--resident-gb", "5,6,7"], "must be two numbers of gigabytes"),
        (["--keep-gb", "2GB"], "'2GB' must be a number above 0"),
        (["--por", "80"], "unrecognized arguments: --por 80; `app.py serve --help`"),
        (["generate", "--preset", "p", "--sampler", "lcm"], "unrecognized arguments: --sampler lcm; `app.py generate --help`"),
        (["generate", "--prompt", "x"], "--preset"),
        (["generate", "--preset", "p", "--prompt", "x", "--frames", "many"], "invalid int value: 'many'"),
        (["generate", "--preset", "p", "--prompt", "x", "--guidance", "much"], "must be numbers separated by commas"),
        (["generate", "--preset", "p", "--prompt", "x", "--solver", "magic"], "invalid choice: 'magic'"),
        (["generate", "--preset", "p", "--prompt", "x", "--lora", "a.safetensors:much"], "must be FILE, FILE:SCALE"),
        (["presets"], "list|show"),
        (["presets", "show"], "NAME"),
    ],
)
def test_a_mistyped_command_is_refused_on_one_line(capsys, words, part):
    message = refusal(capsys, *words)
    assert part in message and "--help` lists what is allowed" in message


def test_a_model_is_a_folder_or_an_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    assert model_from_arguments(parse(["--model", "tiny"])) == str(tmp_path / "tiny")
    assert model_from_arguments(parse(["--model", "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"])) == "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"
    assert model_from_arguments(parse([])) is None
    for path in ("/no/folder", "./none", "typo"):
        with pytest.raises(RequestError, match="must be a checkpoint folder or an id"):
            model_from_arguments(parse(["--model", path]))


def test_serve_takes_names_of_hosts_and_of_presets(capsys):
    options = parse(["--allowed-host", "a.example", "--allowed-host", "b.example", "--models", "wan-tiny, wan2.1-t2v-14b-720p"])
    assert options.allowed_hosts == ["a.example", "b.example"] and options.models == {"wan-tiny", "wan2.1-t2v-14b-720p"}
    assert parse([]).models is None and parse([]).allowed_hosts == []
    assert "did you mean wan-tiny?" in refusal(capsys, "--models", "wan-tny")
    assert "must be one of" in refusal(capsys, "--models", "wan-tiny,")


def test_serve_takes_aliases_of_presets_and_hosts_of_webhooks(capsys):
    options = parse(
        ["--model-alias", "sora-2=ltx-tiny", "--model-alias", "house=wan-tiny", "--webhooks", "N8N.example, 10.0.0.5,*"]
    )
    assert options.model_aliases == [("sora-2", "ltx-tiny"), ("house", "wan-tiny")]
    assert options.webhooks == ("n8n.example", "10.0.0.5", "*") and parse([]).webhooks == () and parse([]).model_aliases == []
    for alias, words in (("sora-2=none", "must be one of"), ("a b=wan-tiny", "NAME=PRESET"), ("wan-tiny", "NAME=PRESET")):
        assert words in refusal(capsys, "--model-alias", alias)
    for hosts in ("https://a.example", "a.example:80", "a.example,", "*.example", ""):
        assert "must be host names" in refusal(capsys, "--webhooks", hosts)


def test_a_live_video_continues_from_a_picture_and_does_as_it_is_told(tmp_path, monkeypatch):
    """The prompt is optional if the model reads none. 8 seconds of 25 frames are 16 blocks of 12 after the first 9, hence 17."""
    monkeypatch.chdir(tmp_path)
    words = ["live", "--preset", "matrix-game-2.0", "--image", "a.png", "--seconds", "8"]
    made = request_from_arguments(parse([*words, "--actions", "forward*8,forward+look-left*8"]))
    assert (made.image, made.task, made.prompt, made.num_frames) == (str(tmp_path / "a.png"), "i2v", "", 201)
    assert [(cue.block, cue.action) for cue in made.cues] == [(0, "forward"), (8, "forward+look-left"), (16, "stay")]
    with pytest.raises(RequestError, match=r"action='jump' must be one of forward, back, .*; choose another"):
        request_from_arguments(parse([*words, "--actions", "jump*8"]))
    with pytest.raises(RequestError, match="prompt is empty"):
        request_from_arguments(parse(["live", "--preset", "wan-live-tiny", "--seconds", "1"]))


def test_what_vace_is_shown_has_options_of_its_own(capsys):
    words = ["generate", "--preset", "wan2.1-vace-1.3b-480p", "--prompt", "x", "--frames", "33"]
    more = "--control /c.mp4 --control-kind edges --control-scale 0.7 --video /v.mp4 --mask /m.png --margins 16,0,32,8 --no-keep-pixels"
    made = request_from_arguments(parse([*words, *more.split(), "--reference", "/a.png", "/b.png", "--reference", "/d.png"]))
    assert (made.control, made.control_kind, made.control_scale, made.mask) == ("/c.mp4", "edges", 0.7, "/m.png")
    assert (made.margins, made.keeps_pixels, made.references) == ((16, 0, 32, 8), False, ("/a.png", "/b.png", "/d.png"))
    made = request_from_arguments(
        parse([*words, "--keyframe", "32:/z.png", "0:/a:b.png", "--video", "/v.mp4", "--extend", "before"])
    )
    assert (made.keyframe_at, made.keyframes) == ((0, 32), ("/a:b.png", "/z.png"))
    assert (made.extend, made.overlap, made.keeps_pixels) == ("before", 17, True)
    ltx = ["generate", "--preset", "ltx-2.5-704p", "--prompt", "x", "--image", "/a.png", "--last-image", "/z.png"]
    made = request_from_arguments(parse([*ltx, "--keyframe", "60:/k.png"]))
    assert (made.task, made.keyframe_at, made.keyframes, made.last_image) == ("i2v", (60,), ("/k.png",), "/z.png")
    made = request_from_arguments(
        parse([*ltx, "--control", "/c.mp4", "--control-scale", "0.8", "--control-downscale", "2", "--trim", "1.5"])
    )
    assert (made.control, made.control_scale, made.control_downscale, made.trim[0]) == ("/c.mp4", 0.8, 2, 1.5)
    assert "must be four numbers of pixels" in refusal(capsys, *words, "--margins", "1,2,3")
    assert "must be four numbers of pixels" in refusal(capsys, *words, "--margins=-1,2,3,4")
    assert "must be a frame number and an image" in refusal(capsys, *words, "--keyframe", "first.png")
    with pytest.raises(RequestError, match="the keyframe at 33 must be one of the video's 33 frames, 0 to 32"):
        request_from_arguments(parse([*words, "--keyframe", "33:/z.png"]))
    with pytest.raises(RequestError, match="control was given but wan-tiny does not take it"):
        request_from_arguments(parse(["generate", "--preset", "wan-tiny", "--prompt", "x", "--control", "/c.mp4"]))


def test_each_command_prints_its_help(capsys):
    help_texts = dict(list_parsers(build_parser()))
    assert len(help_texts) > 20
    for name in help_texts:
        with pytest.raises(SystemExit) as done:
            parse([*name.split(), "--help"])
        assert done.value.code == 0 and "usage: " in capsys.readouterr().out, name
    with pytest.raises(SystemExit):
        parse(["generate", "--help"])
    assert "the first 4 % of the steps" in " ".join(capsys.readouterr().out.split())
