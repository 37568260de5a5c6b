"""A request is validated when it is constructed, and reports an error in one line."""

import json
import math
import re

import pytest

from backend.errors import RequestError
from backend.schemas.request import SEED_LIMIT, GenerationRequest, check_current_limits
from backend.schemas.settings import find_preset
from presets import Preset, load_preset

TINY, WAN = load_preset("wan-tiny"), load_preset("wan2.1-t2v-14b-720p")


def request(preset=TINY, **changes) -> GenerationRequest:
    return GenerationRequest.from_preset(preset, **{"prompt": "a red circle", "seed": 7, **changes})


def refusal(preset=TINY, **changes) -> str:
    with pytest.raises(RequestError) as caught:
        request(preset, **changes)
    message = str(caught.value)
    assert "\n" not in message and caught.value.fix
    return message


def test_the_presets_values_are_the_defaults():
    made = request()
    assert (made.width, made.height, made.num_frames, made.fps, made.steps) == (96, 96, 17, 16, 20)
    assert (made.guidance, made.flow_shift, made.solver, made.task) == ((4.0,), 3.0, "unipc", "t2v")


def test_none_counts_as_not_given_and_a_seed_is_drawn():
    seeds = {GenerationRequest.from_preset(TINY, prompt="x", seed=None, width=None).seed for _ in range(8)}
    assert len(seeds) > 1 and all(0 <= seed < SEED_LIMIT for seed in seeds)


def test_an_image_makes_it_image_to_video():
    assert request(image="/a/b.png").task == "i2v"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_frames": 30}, "num_frames=30 must be 4n+1; nearest: 29 or 33"),
        ({"num_frames": 80}, "num_frames=80 must be 4n+1; nearest: 77 or 81"),
        ({"num_frames": 200}, "num_frames=200 must be 4n+1 and between 5 and 161 for wan-tiny; nearest: 161"),
        ({"num_frames": 0}, "num_frames=0 must be 4n+1 and between 5 and 161 for wan-tiny; nearest: 5"),
        ({"width": 0}, "width=0 must be between 96 and 128 for wan-tiny; nearest: 96"),
        ({"height": 100}, "height=100 must be a multiple of 32 for wan-tiny; nearest: 96 or 128"),
        ({"width": -32}, "width=-32 must be between 96 and 128 for wan-tiny; nearest: 96"),
        ({"height": 100_000}, "height=100000 must be between 96 and 128 for wan-tiny; nearest: 128"),
        ({"steps": -1}, "steps=-1 must be between 1 and 100; 20 is usual"),
        ({"steps": 0}, "steps=0 must be between 1 and 100; 20 is usual"),
        ({"steps": 101}, "steps=101 must be between 1 and 100; 20 is usual"),
        ({"fps": 0}, "fps=0 must be between 1 and 60; 16 is usual"),
        ({"seed": -1}, "seed=-1 must be between 0 and 4294967295; leave it out for a random seed"),
        ({"seed": 2**32}, "seed=4294967296 must be between 0 and 4294967295; leave it out for a random seed"),
        ({"guidance": (4.0, 3.0)}, "guidance has 2 values and must have 1, one per expert of wan-tiny; 4 is usual"),
        ({"guidance": ()}, "guidance has 0 values and must have 1, one per expert of wan-tiny; 4 is usual"),
        ({"guidance": (math.nan,)}, "guidance=nan must be between 0 and 30; 4 is usual"),
        ({"guidance": (-1.0,)}, "guidance=-1 must be between 0 and 30; 4 is usual"),
        ({"flow_shift": math.inf}, "flow_shift=inf must be above 0 and at most 100; 3 is usual"),
        ({"flow_shift": 0.0}, "flow_shift=0 must be above 0 and at most 100; 3 is usual"),
        ({"task": "i2v"}, "image is missing: image to video starts from one; give the first frame as image"),
        (
            {"image": "/a.png", "task": "t2v"},
            "image was given but text to video takes no image; leave it out, or choose task i2v",
        ),
        ({"image": "a.png"}, "image='a.png' must be an absolute path; give the whole path"),
        ({"image": "/a.png", "last_image": "/b.png"}, "last_image was given but wan-tiny takes a first image only; leave it out"),
        (
            {"prompt": "a\0b"},
            "prompt has the control character U+0000 at position 1 and must be plain text; remove that character",
        ),
        (
            {"negative_prompt": "\udc80"},
            "negative_prompt has the control character U+DC80 at position 0 and must be plain text; remove that character",
        ),
        (
            {"prompt": "x" * 4097},
            "prompt has 4097 characters and must have at most 4096; shorten it: the model reads 512 tokens at most",
        ),
    ],
)
def test_a_wrong_value_is_refused_in_these_words(changes, message):
    assert refusal(**changes) == message


def test_wan_frames_get_the_nearest_two():
    assert refusal(WAN, num_frames=80) == "num_frames=80 must be 4n+1; nearest: 77 or 81"


@pytest.mark.parametrize("prompt", ["", " ", "\n\t", "\u3000"])
def test_a_blank_prompt_is_refused_with_an_example(prompt):
    message = refusal(prompt=prompt)
    assert message.startswith("prompt is empty and must say what the video shows; for example 'a red circle")


def test_an_image_for_a_text_model_is_refused():
    assert refusal(WAN, image="/a.png").startswith("task=i2v is not supported by wan2.1-t2v-14b-720p: text to video only")


@pytest.mark.parametrize(
    ("changes", "beginning"),
    [
        ({"width": 81.5}, "width=81.5 is refused"),
        ({"width": math.nan}, "width=nan is refused"),
        ({"width": "wide"}, "width='wide' is refused"),
        ({"solver": "magic"}, "solver='magic' is refused: input should be 'unipc', 'euler', 'euler-distilled', 'lcm', "),
        ({"colour": "red"}, "colour='red' is refused"),
        ({"prompt": 3}, "prompt=3 is refused"),
        ({"image_focus": (0.5, 1.5)}, "image_focus.1=1.5 is refused"),
        ({"prompt": ["x" * 500]}, "prompt=['xxx"),
    ],
)
def test_a_wrong_type_is_a_request_error_too(changes, beginning):
    message = refusal(**changes)
    assert message.startswith(beginning) and len(message) < 200


@pytest.mark.parametrize(
    "changes",
    [{"sound_guidance": 7}, {"perturbed_guidance": (1, 1)}, {"modality_guidance": (3, 3)}, {"guidance_rescale": (0.7, 0)}],
)
def test_what_is_for_models_with_a_sound_is_refused_elsewhere(changes):
    assert refusal(**changes) == f"{next(iter(changes))} was given, and wan-tiny does not support it; leave it out"


@pytest.mark.parametrize(
    "name, changes",
    [
        ("ltx-2.3-704p", {"step_cache": 0.1}),
        ("wan-live-tiny", {"step_cache": 0.1}),
        ("fastwan2.1-t2v-1.3b-480p", {"flow_shift": 3.0}),
        ("turbowan2.1-t2v-1.3b-480p", {"flow_shift": 3.0}),
    ],
)
def test_a_value_that_the_model_ignores_is_refused_in_new_requests_only(name, changes):
    preset, (setting,) = load_preset(name), changes
    assert refusal(preset, **changes) == f"{setting} was given, and {name} does not support it; leave it out"
    own = request(preset, **{setting: getattr(preset, setting)})
    stored = GenerationRequest.from_stored(own.to_json() | changes)  # an older version stored it
    assert getattr(stored, setting) == changes[setting]
    check_current_limits(stored)  # a waiting job continues, and a video is generated again
    assert stored.with_changes(seed=8).to_json() == own.with_changes(seed=8).to_json() | changes


def test_a_preset_cannot_have_a_step_cache_that_its_model_ignores():
    with pytest.raises(ValueError, match="step_cache needs a model without audio"):
        Preset(**load_preset("ltx-tiny").model_dump() | {"step_cache": 0.1})


def test_a_missing_field_is_named():
    with pytest.raises(RequestError, match="task is missing"):
        GenerationRequest(preset="wan-tiny", prompt="x")


def test_an_unknown_preset_is_a_request_error():
    with pytest.raises(RequestError, match="did you mean wan-tiny"):
        find_preset("wan-tny")
    with pytest.raises(RequestError, match="preset='nothing' must be one of"):
        GenerationRequest(**{**request().model_dump(), "preset": "nothing"})


def test_nothing_is_changed_on_the_way_in():
    text = '  a "red"\ncircle\tand 圆 \U0001f600 '
    assert request(prompt=text).prompt == text


def test_it_survives_json():
    made = request(image="/a/b.png", image_focus=(0.25, 1.0), prompt="圆\n'\"")
    assert GenerationRequest.from_stored(json.loads(json.dumps(made.to_json()))) == made
    assert GenerationRequest.model_validate_json(made.model_dump_json()) == made


def test_a_stored_request_is_readable_whatever_the_presets_say_today():
    old = request().to_json() | {"preset": "gone", "num_frames": 12_345}
    assert GenerationRequest.from_stored(old).num_frames == 12_345


def test_a_changed_copy_is_checked():
    assert request().with_changes(steps=3).steps == 3
    with pytest.raises(RequestError):
        request().with_changes(steps=0)


def test_it_cannot_be_modified():
    with pytest.raises(ValueError, match="frozen"):
        request().steps = 3


def test_what_is_shared_tells_no_folders():
    assert request(image="/home/somebody/cat.png").for_sharing()["image"] == "cat.png"
    assert request().for_sharing()["image"] is None


def test_its_geometry_is_the_models():
    assert request().geometry().num_tokens == 45
    assert request(WAN).geometry().num_tokens == 75_600


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"guidance_interval": (0.6, 0.2)}, "guidance_interval=0.6,0.2 must be two shares"),
        ({"guidance_interval": (0, 2)}, "guidance_interval=0,2 must be two shares"),
        ({"step_cache": 2}, "step_cache=2 must be between 0 and 1"),
        ({"loras": [{"source": "/etc/passwd"}]}, "loras.0.source='/etc/passwd' is refused: must be the name"),
        ({"loras": [{"source": "a.safetensors", "scale": 11}]}, "loras.0.scale=11"),
        ({"loras": [{"source": "a.safetensors", "expert": "low"}]}, "wan-tiny has one network only"),
        ({"loras": [{"source": "a.safetensors"}] * 9}, "at most 8"),
    ],
)
def test_loras_and_shares_are_checked(changes, message):
    with pytest.raises(RequestError, match=re.escape(message)):
        GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="x", **changes)


def test_a_request_stored_before_these_fields_existed_still_loads():
    old = GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="x").to_json()
    for name in ("loras", "guidance_interval", "step_cache"):
        del old[name]
    loaded = GenerationRequest.from_stored(old)
    assert (loaded.loras, loaded.guidance_interval, loaded.step_cache) == ((), (0.0, 1.0), 0.0)


def test_guidance_counts_where_it_runs():
    def make(**changes):
        return GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="x", **changes)

    assert make().is_guided and not make(guidance=(1.0,)).is_guided and not make(guidance_interval=(0.3, 0.3)).is_guided


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("guidance", []),
        ("guidance", [float("inf")]),
        ("guidance", [float("nan")]),
        ("guidance", [1.0] * 9),
        ("flow_shift", float("nan")),
        ("guidance_interval", [float("nan"), 1.0]),
        ("step_cache", float("inf")),
        ("steps", 10**30),
        ("steps", 0),
        ("seed", 2**70),
        ("seed", -1),
        ("width", 0),
        ("width", 10**9),
        ("height", -5),
        ("num_frames", 10**12),
        ("fps", 0),
        ("prompt", "a\ud800"),
        ("negative_prompt", "x" * 60_000),
        ("preset", "wan\udfff"),
    ],
)
def test_what_no_preset_has_ever_allowed_is_refused_in_links_and_videos_too(field, value):
    data = GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="x", seed=1).to_json()
    with pytest.raises(RequestError, match=field) as refused:
        GenerationRequest.from_stored(data | {field: value})
    str(refused.value).encode("utf-8")


def test_earlier_limits_still_load():
    data = GenerationRequest.from_preset(load_preset("wan-tiny"), prompt="x", seed=1).to_json()
    assert GenerationRequest.from_stored(data | {"width": 4096, "steps": 500, "guidance": [50.0, 0.0]}).steps == 500


CLIP = {"video": "/a/clip.mp4"}


def test_a_clip_is_taken_from_its_beginning_as_long_as_the_video_and_mostly_regenerated():
    made = request(**CLIP)
    assert (made.task, made.strength, made.trim, made.num_frames) == ("t2v", 0.8, (0.0, 17 / 16), 17)
    assert request(**CLIP, num_frames=33, fps=8).trim == (0.0, 33 / 8)


def test_a_part_of_a_clip_says_how_long_the_video_is():
    assert request(**CLIP, trim=(1.0, 1.0 + 21 / 16)).num_frames == 21
    assert request(**CLIP, trim=[1.0, 2.05]).num_frames == 17  # within half a frame
    wan = request(WAN, **CLIP, trim=(10, 10 + 81 / 16))
    assert (wan.num_frames, wan.trim) == (81, (10.0, 15.0625))


@pytest.mark.parametrize(
    ("strength", "steps", "done"), [(1.0, 20, 20), (0.8, 20, 16), (0.58, 50, 28), (0.25, 4, 1), (0.99, 3, 2)]
)
def test_the_strength_says_how_many_steps_are_done(strength, steps, done):
    """diffusers counts the same: min(int(steps * strength), steps)."""
    assert request(**CLIP, strength=strength, steps=steps).num_steps == done
    assert request(steps=steps).num_steps == steps


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strength": 0.5}, "strength was given but needs a clip; give it as video, or leave this out"),
        ({"trim": (0, 1)}, "trim was given but needs a clip; give it as video, or leave this out"),
        (CLIP | {"strength": 0.0}, "strength=0 must be above 0 and at most 1; 0.8 is usual"),
        (CLIP | {"strength": 1.5}, "strength=1.5 must be above 0 and at most 1; 0.8 is usual"),
        (CLIP | {"strength": math.nan}, "strength=nan must be above 0 and at most 1; 0.8 is usual"),
        (
            CLIP | {"strength": 0.2, "steps": 4},
            "strength=0.2 leaves none of 4 steps and must leave at least one; choose at least 0.25, or more steps",
        ),
        (
            CLIP | {"trim": (1, 2)},
            "trim=1,2 is 16 frames at 16 fps and must be 13 or 17 for wan-tiny; "
            "choose 1,1.8125 (13 frames) or 1,2.0625 (17 frames)",
        ),
        (
            CLIP | {"trim": (0, 11)},
            "trim=0,11 is 176 frames at 16 fps and must be 161 for wan-tiny; choose 0,10.0625 (161 frames)",
        ),
        (
            CLIP | {"trim": (1, 2.0625), "num_frames": 33},
            "trim=1,2.0625 is 17 frames at 16 fps and must be 33 for wan-tiny; choose 1,3.0625 (33 frames)",
        ),
        (CLIP | {"trim": (2, 1)}, "trim=2,1 must be two times of the clip, in seconds, 0 or more, the later time second; "
                                  "0,3 are its first three seconds"),
        (CLIP | {"trim": (-1, 1)}, "trim=-1,1 must be two times of the clip, in seconds, 0 or more, the later time second; "
                                   "0,3 are its first three seconds"),
        (CLIP | {"fps": 0}, "fps=0 must be between 1 and 60; 16 is usual"),
        (CLIP | {"image": "/a.png"}, "image was given together with video, but a video can start with only one; leave one out"),
        ({"video": "clip.mp4"}, "video='clip.mp4' must be an absolute path; give the whole path"),
    ],
)  # fmt: skip
def test_a_clip_that_cannot_be_is_refused_in_these_words(changes, message):
    assert refusal(**changes) == message


@pytest.mark.parametrize(
    "changes", [{"trim": (math.nan, 1)}, {"trim": (0, math.inf)}, {"trim": "0,1"}, {"trim": (1,)}, {"strength": "x"}]
)
def test_numbers_that_are_none_are_refused_too(changes):
    assert refusal(**CLIP | changes).startswith(next(iter(changes)))


def test_presets_without_text_to_video_take_no_clip():
    assert refusal(load_preset("wan2.1-i2v-14b-480p"), image="/a.png", **CLIP) == (
        "video was given but wan2.1-i2v-14b-480p does not take it; leave it out"
    )


def test_a_clip_survives_json_and_is_shared_by_its_name_only():
    made = request(**CLIP, strength=0.5, trim=(0.5, 1.5625))
    assert GenerationRequest.from_stored(json.loads(json.dumps(made.to_json()))) == made
    shared = made.for_sharing()
    assert (shared["video"], shared["strength"], shared["trim"]) == ("clip.mp4", 0.5, [0.5, 1.5625])
    assert not {"video", "strength", "trim"} & request().to_json().keys()
    with pytest.raises(RequestError, match="strength"):
        GenerationRequest.from_stored(made.to_json() | {"strength": 3.0})
    with pytest.raises(RequestError, match="trim"):
        GenerationRequest.from_stored(made.to_json() | {"trim": [0, 1e9]})


def test_a_changed_copy_keeps_its_clip():
    made = request(**CLIP, strength=0.5)
    again = made.with_changes(seed=8)
    assert (again.video, again.strength, again.trim) == (made.video, 0.5, made.trim)
