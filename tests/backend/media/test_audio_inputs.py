"""Check untrusted audio files: the requested part in stereo, one sentence for unusable files, and bounded memory."""

import subprocess
import sys
import wave

import numpy as np
import pytest

from backend.errors import SoundError
from backend.media.audio_inputs import MAX_RATE, MODEL_RATE, check_sound_part, read_for_model, read_original, read_sound_facts
from backend.media.sound import Sound, replace_audio
from backend.media.video import write_exact_frames
from backend.schemas.sound import SoundPart
from backend.settings import PROJECT_FOLDER
from tests.clip_files import counting_clip, run_ffmpeg

TONE = 440.0
ASKED = """
import re, resource, sys
from pathlib import Path
from backend.errors import SoundError
from backend.media.audio_inputs import read_sound_facts
try:
    read_sound_facts(sys.argv[1])
except SoundError as error:
    print(error)
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""  # in kB: the peak of this process, and the peak of its child processes


def tone(path, seconds=2.0, rate=44_100, channels=2):
    time = np.arange(round(seconds * rate)) / rate
    loud = 0.5 * np.sin(2 * np.pi * TONE * time)
    Sound(samples=np.stack([loud] + [0.1 * loud] * (channels - 1)).astype(np.float32), rate=rate).write(path)
    return path


def refusal(path, start: float = 0.0) -> str:
    with pytest.raises(SoundError) as caught:
        check_sound_part(path, SoundPart(start=start, seconds=1.0))
    told = str(caught.value)
    assert "\n" not in told and len(told) < 250 and str(path.parent) not in told
    return told


@pytest.mark.parametrize("name", ["a.wav", "a.mp3", "a.m4a", "a.ogg", "a.flac", "a.mp4", "a.webm"])
def test_every_format_gives_its_part_in_stereo(tmp_path, name):
    path = tone(tmp_path / "tone.wav")
    if name != "a.wav":
        shown = ["-f", "lavfi", "-i", "color=red:64x48:r=8:d=2", "-shortest"] if name in ("a.mp4", "a.webm") else []
        run_ffmpeg("-i", str(path), *shown, str(tmp_path / name))
        path = tmp_path / name
    facts = read_sound_facts(path)
    assert facts.seconds == pytest.approx(2.0, abs=0.1) and facts.suffix == {"a.m4a": ".mp4"}.get(name, path.suffix)
    part = SoundPart(start=0.5, seconds=1.0)
    heard, original = read_for_model(path, part), read_original(path, part)
    assert heard.shape == (2, MODEL_RATE) and original.samples.shape == (2, original.rate)
    spectrum = np.abs(np.fft.rfft(heard[0] * np.hanning(MODEL_RATE)))
    assert abs(spectrum.argmax() - TONE) <= 1  # one frequency bin per hertz
    left, right = np.abs(heard).max(1)
    assert left == pytest.approx(0.5, abs=0.1) and right == pytest.approx(0.05, abs=0.04)


def test_many_channels_and_high_rates_become_stereo_at_48_khz(tmp_path):
    path = tmp_path / "studio.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((8, 2, 192_000, 0, "NONE", ""))
        file.writeframes((np.random.default_rng(0).normal(0, 3000, (192_000, 8))).astype("<i2").tobytes())
    original = read_original(path, SoundPart(start=0, seconds=1.0))
    assert original.rate == MAX_RATE and original.samples.shape == (2, MAX_RATE) and np.abs(original.samples).max() > 0.05


def test_silence_follows_a_sound_that_ends_sooner(tmp_path):
    heard = read_for_model(tone(tmp_path / "a.wav", seconds=0.5), SoundPart(start=0.25, seconds=1.0))
    assert (
        heard.shape == (2, MODEL_RATE)
        and np.abs(heard[0, : MODEL_RATE // 5]).max() > 0.4
        and not heard[:, MODEL_RATE // 2 :].any()
    )


def test_what_is_no_sound_is_refused_in_a_sentence(tmp_path):
    missing, empty, text, silent = (tmp_path / name for name in ("no.wav", "empty.mp3", "text.mp3", "none.wav"))
    empty.touch()
    text.write_text("this is no sound " * 100)
    Sound(samples=np.zeros((2, 0), np.float32), rate=16_000).write(silent)
    assert "no file is at that path" in refusal(missing) and "this file is empty" in refusal(empty)
    assert "must be an audio file (wav, mp3, m4a, ogg, flac, or a video with audio)" in refusal(text)
    assert "no samples" in refusal(silent)
    assert "is a silent video" in refusal(counting_clip(tmp_path / "clip.mp4", 8, 8))
    assert "must be within the 2.00 s" in refusal(tone(tmp_path / "short.wav"), start=2.0)


@pytest.mark.parametrize("name", ["a.wav", "a.m4a", "a.flac"])
def test_what_is_cut_off_is_refused(tmp_path, name):
    whole = tone(tmp_path / "tone.wav", seconds=8.0)
    if name != "a.wav":
        run_ffmpeg("-i", str(whole), str(tmp_path / name))
        whole = tmp_path / name
    cut = tmp_path / f"cut{whole.suffix}"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    assert "cut off or damaged" in refusal(cut)


def test_ten_hours_are_refused_at_little_memory(tmp_path):
    path, piece = tmp_path / "long.mp3", tmp_path / "piece.mp3"
    run_ffmpeg("-f", "lavfi", "-i", "anullsrc=r=16000:cl=mono", "-t", "360", "-b:a", "8k", str(piece))
    with path.open("wb") as file:  # frames of MPEG audio are independent
        for _ in range(100):
            file.write(piece.read_bytes())
    done = subprocess.run([sys.executable, "-c", ASKED, str(path)], capture_output=True, text=True, cwd=PROJECT_FOLDER)
    told, own, ffmpegs = done.stdout.strip().splitlines()
    assert "must last at most 60" in told and int(own) + int(ffmpegs) < 200_000, done.stdout + done.stderr


def test_a_list_of_files_is_no_sound(tmp_path):
    """A file that names other files could make ffmpeg read them."""
    path = tmp_path / "list.wav"
    path.write_text(f"ffconcat version 1.0\nfile {tone(tmp_path / 'secret.wav')}\n")
    assert "must be an audio file" in refusal(path)
    playlist = tmp_path / "list.m3u8"
    playlist.write_text(f"#EXTM3U\n#EXTINF:10,\n{tmp_path / 'secret.wav'}\n")
    assert "must be an audio file" in refusal(playlist)


@pytest.mark.parametrize("start", [0.0, 0.02, 0.3])
def test_a_part_of_a_videos_sound_begins_where_it_should(tmp_path, start):
    """A short video. Readers easily drop its first packets of AAC."""
    path, rate = tmp_path / "short.mp4", 22_050
    write_exact_frames([np.full((64, 64, 3), 9, np.uint8)] * 17, path, fps=24)
    time = np.arange(round(17 / 24 * rate)) / rate
    tone = Sound(samples=0.5 * np.sin(2 * np.pi * (200 + 300 * time) * time).astype(np.float32)[None].repeat(2, 0), rate=rate)
    replace_audio(path, tone, (64, 64))
    heard = read_original(path, SoundPart(start=start, seconds=0.3))
    assert np.abs(heard.samples - tone.part(start, 0.3).samples).max() < 0.05  # AAC's own loss; one packet too late gives 1
