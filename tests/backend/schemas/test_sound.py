"""Check the audio settings of a request."""

import pytest

from backend.errors import RequestError
from backend.schemas.request import GenerationRequest
from backend.schemas.sound import SoundPart, keeps_clip_audio
from presets import load_preset

LTX, WAN = load_preset("ltx-2.3-704p"), load_preset("wan-tiny")
GOES_ON = dict(video="/clip.mp4", extend="after")
CLIP = dict(video="/clip.mp4", make="sound")


def request(preset=LTX, **given) -> GenerationRequest:
    return GenerationRequest.from_preset(preset, prompt="a street musician", **given)


def test_a_given_sound_is_as_long_as_the_video_from_its_start_on():
    made = request(sound="/song.mp3", sound_start=12.5, num_frames=49)
    assert SoundPart.from_request(made) == SoundPart(start=12.5, seconds=49 / 24)
    assert made.inputs() == {"sound": ("/song.mp3",)} and made.is_from_pictures and made.reads_clip
    again = GenerationRequest.from_stored(made.to_json())
    assert again == made and made.for_sharing()["sound"] == "song.mp3"


def test_a_clip_whose_sound_is_made_keeps_its_pictures():
    made = request(**CLIP, trim=(1.0, 1.0 + 49 / 24))
    assert (made.num_frames, made.strength, made.num_steps) == (49, None, LTX.steps) and made.keeps_pixels
    assert GenerationRequest.from_stored(made.to_json()) == made and not made.is_from_pictures


def test_a_video_that_continues_hears_its_clip_unless_it_is_silent_or_has_a_sound_of_its_own():
    made = request(video="/clip.mp4", extend="after")
    assert made.overlap == 17 and keeps_clip_audio(made) and GenerationRequest.from_stored(made.to_json()) == made
    part = SoundPart.from_clip(made, 5.04)  # as files state it: 121 frames last 5.0417 s
    assert (part.start, part.seconds) == (pytest.approx(104 / 24), pytest.approx(17 / 24))
    assert SoundPart.from_clip(made.with_changes(trim=(1.0, 3.0)), 5.04).start == pytest.approx(3 - 17 / 24)
    others = [made.with_changes(keeps_sound=False), made.with_changes(sound="/song.mp3"), request(**CLIP), request()]
    assert not any(map(keeps_clip_audio, others)) and not keeps_clip_audio(request(WAN, video="/clip.mp4", extend="after"))


@pytest.mark.parametrize(
    ("preset", "given", "said"),
    [
        (LTX, dict(GOES_ON, overlap=5), "overlap=5 must be 8n+1 and below 121 for ltx-2.3-704p; 17 is usual"),
        (LTX, dict(GOES_ON, extend="before"), "extend=before is not supported by ltx-2.3-704p"),
        (LTX, dict(GOES_ON, image="/a.png"), "image was given together with video"),
        (LTX, dict(GOES_ON, keyframes=("/k.png",), keyframe_at=(16,)), "the keyframe at 16 must be after the 17 frames"),
        (WAN, dict(sound="/song.mp3"), "sound was given but wan-tiny does not take it"),
        (WAN, CLIP, "make was given, and wan-tiny does not support it"),
        (WAN, dict(sound_start=1.0), "sound_start was given but needs sound"),
        (LTX, dict(sound_start=1.0), "sound_start was given but needs sound"),
        (LTX, dict(sound="/song.mp3", sound_start=-1.0), "must be a time of the audio"),
        (LTX, dict(sound="/song.mp3", sound_start=float("nan")), "must be"),
        (LTX, dict(sound="song.mp3"), "must be an absolute path"),
        (LTX, dict(make="sound"), "video is missing"),
        (LTX, dict(video="/clip.mp4"), "can only generate audio for a clip"),
        (LTX, dict(CLIP, sound="/song.mp3"), "sound was given but make=sound only generates audio"),
        (LTX, dict(CLIP, image="/a.png"), "image was given but make=sound only generates audio"),
        (LTX, dict(CLIP, strength=0.5), "strength was given but make=sound only generates audio"),
        (LTX, dict(CLIP, keeps_sound=False), "keeps_sound cannot be combined with make"),
        (LTX, dict(CLIP, trim=(0.0, 1.0)), "is 24 frames at 24 fps"),
        (LTX, dict(make="music"), "make='music' is refused"),
        (LTX, dict(sound="/song.mp3", shots=[dict(prompt="a"), dict(prompt="b")]), "sound was given together with shots"),
    ],
)
def test_what_does_not_go_together_is_refused(preset, given, said):
    with pytest.raises(RequestError) as caught:
        request(preset, **given)
    assert said in str(caught.value)
