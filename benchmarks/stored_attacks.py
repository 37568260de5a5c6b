"""Attacks on what the studio stores, for `benchmarks.strangers`: forged projects, exports, pictures, suggestions."""

import base64
import io
import json
import os
import subprocess
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
from PIL import Image

from backend.media.project_archive import FORMAT, MANIFEST
from backend.schemas.settings import SETTINGS
from benchmarks.hostile_requests import Stranger

PRESET, VACE = "wan-tiny", "wan-tiny-vace"
REQUEST = {
    "preset": PRESET, "task": "t2v", "prompt": "x", "width": 96, "height": 96, "num_frames": 17, "fps": 16, "steps": 2,
    "guidance": [1.0], "flow_shift": 3.0, "seed": 1,
}  # fmt: skip
HEAVY_VIDEOS = 30
LARGE_SIZES = (
    {"width": 32768, "height": 32768},
    {"width": 4096, "height": 4096, "num_frames": 161},
    {"width": 1024, "height": 1024},
)
FORGED = {
    "100,000 steps": {"steps": 100_000},
    "32768x32768, 100,000 frames": {"width": 32768, "height": 32768, "num_frames": 100_000},
    "an open video of 100,000 frames": {"is_open": True, "num_frames": 100_000},
    "100 times larger": {"upscale": 100},
    "8 guidances": {"guidance": [1.0] * 8},
}


def tiny_video(folder: Path) -> bytes:
    """A video of 96x96 pixels."""
    return _encoded(folder / "tiny.mp4", "color=red:s=96x96:r=16:d=1")


def noisy_video(folder: Path, seconds: int) -> bytes:
    """A video of 1080p that is hard to export."""
    return _encoded(folder / "noisy.mp4", f"testsrc2=s=1920x1080:r=24:d={seconds},noise=alls=8:allf=t")


def _encoded(path: Path, source: str) -> bytes:
    line = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", "-f", "lavfi", "-i", source, "-c:v", "libx264"]
    subprocess.run([*line, "-preset", "ultrafast", "-crf", "32", "-pix_fmt", "yuv420p", str(path)], check=True)
    return path.read_bytes()


def project(video: bytes, requests: Sequence[dict[str, Any]]) -> bytes:
    """A project file with a video for each of these requests."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        videos = []
        for number, request in enumerate(requests, 1):
            archive.writestr(f"videos/{number:04}.mp4", video)
            videos.append({"file": f"videos/{number:04}.mp4", "inputs": {}, "request": request, "created": 1.0})
        archive.writestr(MANIFEST, json.dumps({"format": FORMAT, "name": "x", "videos": videos}))
    return buffer.getvalue()


def press(stranger: Stranger, group: str, what: str, **given: str) -> str:
    """What the page answers to a button of this group."""
    found = (one for one in stranger.config["dependencies"] if one["targets"] and one["targets"][0][1] == f"act_{group}")
    return stranger.call(next(found)["api_name"], {}, {"what": what, **given}).text


def bring_in(stranger: Stranger, archive: bytes) -> list[str]:
    """Imports a project file; the ids of the visitor's videos then."""
    press(stranger, "project", "import", value=stranger.upload("x.zip", archive))
    listed = stranger.client.get("/v1/videos?limit=100").json()
    return [video["id"] for video in listed.get("data", [])]


def queue_forged(stranger: Stranger, video: bytes) -> None:
    """Imports videos with settings that nobody may queue, and presses "Same again" on each."""
    for changes in FORGED.values():
        for job_id in bring_in(stranger, project(video, [REQUEST | changes])):
            press(stranger, "again", "same", job=job_id)


def seconds_to_make(stranger: Stranger, most: float) -> float:
    """How long a short video takes; infinite if it is not completed within `most` seconds."""
    began = time.monotonic()
    body = {"model": PRESET, "prompt": "a red circle", "steps": 2}
    video = stranger.client.post("/v1/videos", json=body).json()
    while video.get("status") in ("queued", "in_progress") and time.monotonic() < began + most:
        time.sleep(0.25)
        video = stranger.client.get(f"/v1/videos/{video['id']}").json()
    return time.monotonic() - began if video.get("status") == "completed" else float("inf")


def exports(stranger: Stranger, job_id: str) -> list[Callable[[], Any]]:
    """Everything that a video can be exported as, at once."""
    get = stranger.client.get
    return [lambda form=form: get(f"/studio/export/{job_id}/{form}") for form in ("gif", "webp", "png", "webm", "smooth")]


def stop_tasks(stranger: Stranger, most: float) -> bool:
    """Stops the visitor's exports; whether all of them have ended within `most` seconds."""
    until = time.monotonic() + most
    while tasks := stranger.client.get("/studio/tasks").json()["tasks"]:
        if time.monotonic() > until:
            return False
        for task in tasks:
            stranger.client.post(f"/studio/tasks/{task['id']}/stop")
        time.sleep(0.25)
    return True


def heavy_project(video: bytes) -> bytes:
    """30 videos with as many cues as an import may have, and almost as many characters."""
    cues = [{"block": 1, "prompt": "x" * 30}] * (SETTINGS["cues"].most or 0)
    return project(video, [REQUEST | {"cues": cues}] * HEAVY_VIDEOS)


def ask_for_suggestion(stranger: Stranger) -> None:
    """Has the prompt helper write for a prompt of one word that repeats, and waits for the comparison."""
    function = next(one for one in stranger.config["dependencies"] if one["api_name"] == "suggest")
    props = [
        component["props"] for one in function["inputs"] for component in stranger.config["components"] if component["id"] == one
    ]
    data = ["a " * 4000 if each.get("elem_id") == "prompt" else each.get("value") for each in props]
    message = {"data": data, "fn_index": function["id"], "session_hash": stranger.session}
    stranger.client.post("/gradio_api/queue/join", json=message)
    with stranger.client.stream("GET", f"/gradio_api/queue/data?session_hash={stranger.session}") as answer:
        for line in answer.iter_lines():
            if "process_completed" in line:
                return


def noise(width: int, height: int, form: str) -> bytes:
    """A picture that cannot be compressed."""
    buffer = io.BytesIO()
    pixels = np.frombuffer(os.urandom(width * height * 3), np.uint8).reshape(height, width, 3)
    Image.fromarray(pixels).save(buffer, form, quality=75)
    return buffer.getvalue()


def make_and_delete(stranger: Stranger, picture: bytes) -> None:
    """Queues a video of this picture and deletes it."""
    address = "data:image/jpeg;base64," + base64.b64encode(picture).decode()
    body = {"model": PRESET, "prompt": "x", "steps": 2, "input_reference": address}
    video = stranger.client.post("/v1/videos", json=body).json()
    stranger.client.delete(f"/v1/videos/{video.get('id')}")


def offer_characters(stranger: Stranger, most: float) -> bool:
    """Queues a storyboard with four characters of 14.5 MB each; whether the studio offers them within `most` seconds."""
    shots = json.dumps([{"prompt": "Anna walks"}, {"prompt": "Bob walks"}])
    files = {f"figures[figure {number}]": ("a.png", noise(2200, 2200, "PNG")) for number in range(4)}
    fields = {"model": VACE, "prompt": "x", "steps": "1", "shots": shots}
    stranger.client.post("/v1/videos", data=fields, files=files)
    until = time.monotonic() + most
    while time.monotonic() < until:
        if stranger.client.get("/studio/figures").json()["figures"]:
            return True
        time.sleep(1)
    return False


def disk_bytes(folder: Path) -> int:
    """The bytes of all files below a folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(Path(place, name)).st_size
            except OSError:
                continue  # it has gone meanwhile
    return total
