"""Attacks on stored data, for `benchmarks.strangers`: forged projects, exports, images, suggestions."""

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
from benchmarks.hostile_requests import HttpVisitor

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
    """Return a video of 96x96 pixels."""
    return _encoded(folder / "tiny.mp4", "color=red:s=96x96:r=16:d=1")


def noisy_video(folder: Path, seconds: int) -> bytes:
    """Return a 1080p video of noise, which takes long to export."""
    return _encoded(folder / "noisy.mp4", f"testsrc2=s=1920x1080:r=24:d={seconds},noise=alls=8:allf=t")


def _encoded(path: Path, source: str) -> bytes:
    line = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", "-f", "lavfi", "-i", source, "-c:v", "libx264"]
    subprocess.run([*line, "-preset", "ultrafast", "-crf", "32", "-pix_fmt", "yuv420p", str(path)], check=True)
    return path.read_bytes()


def project(video: bytes, requests: Sequence[dict[str, Any]]) -> bytes:
    """Return a project file with a video for each request."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        videos = []
        for number, request in enumerate(requests, 1):
            archive.writestr(f"videos/{number:04}.mp4", video)
            videos.append({"file": f"videos/{number:04}.mp4", "inputs": {}, "request": request, "created": 1.0})
        archive.writestr(MANIFEST, json.dumps({"format": FORMAT, "name": "x", "videos": videos}))
    return buffer.getvalue()


def press(attacker: HttpVisitor, group: str, what: str, **given: str) -> str:
    """Press a button of this group and return the page's answer."""
    found = (one for one in attacker.config["dependencies"] if one["targets"] and one["targets"][0][1] == f"act_{group}")
    return attacker.call(next(found)["api_name"], {}, {"what": what, **given}).text


def bring_in(attacker: HttpVisitor, archive: bytes) -> list[str]:
    """Import a project file. Return the ids of the visitor's videos."""
    press(attacker, "project", "import", value=attacker.upload("x.zip", archive))
    listed = attacker.client.get("/v1/videos?limit=100").json()
    return [video["id"] for video in listed.get("data", [])]


def queue_forged(attacker: HttpVisitor, video: bytes) -> None:
    """Import videos with settings that nobody may queue, and press "Same again" on each."""
    for changes in FORGED.values():
        for job_id in bring_in(attacker, project(video, [REQUEST | changes])):
            press(attacker, "again", "same", job=job_id)


def seconds_to_make(attacker: HttpVisitor, most: float) -> float:
    """Generate a short video and return its seconds, infinite if it is not finished within `most` seconds."""
    began = time.monotonic()
    body = {"model": PRESET, "prompt": "a red circle", "steps": 2}
    video = attacker.client.post("/v1/videos", json=body).json()
    while video.get("status") in ("queued", "in_progress") and time.monotonic() < began + most:
        time.sleep(0.25)
        video = attacker.client.get(f"/v1/videos/{video['id']}").json()
    return time.monotonic() - began if video.get("status") == "completed" else float("inf")


def exports(attacker: HttpVisitor, job_id: str) -> list[Callable[[], Any]]:
    """Return functions that export a video in all formats."""
    get = attacker.client.get
    return [lambda form=form: get(f"/studio/export/{job_id}/{form}") for form in ("gif", "webp", "png", "webm", "smooth")]


def stop_tasks(attacker: HttpVisitor, most: float) -> bool:
    """Stop the visitor's exports. Return whether all exports have ended within `most` seconds."""
    until = time.monotonic() + most
    while tasks := attacker.client.get("/studio/tasks").json()["tasks"]:
        if time.monotonic() > until:
            return False
        for task in tasks:
            attacker.client.post(f"/studio/tasks/{task['id']}/stop")
        time.sleep(0.25)
    return True


def heavy_project(video: bytes) -> bytes:
    """Return a project file with 30 videos. Each has the most cues, and all have almost the most text, that an import accepts."""
    cues = [{"block": 1, "prompt": "x" * 30}] * (SETTINGS["cues"].max_imported_length or 0)
    return project(video, [REQUEST | {"cues": cues}] * HEAVY_VIDEOS)


def ask_for_suggestion(attacker: HttpVisitor) -> None:
    """Request a suggestion for a prompt that repeats one word, and wait until the page has compared the suggestion."""
    function = next(one for one in attacker.config["dependencies"] if one["api_name"] == "suggest")
    props = [
        component["props"] for one in function["inputs"] for component in attacker.config["components"] if component["id"] == one
    ]
    data = ["a " * 4000 if each.get("elem_id") == "prompt" else each.get("value") for each in props]
    message = {"data": data, "fn_index": function["id"], "session_hash": attacker.session}
    attacker.client.post("/gradio_api/queue/join", json=message)
    with attacker.client.stream("GET", f"/gradio_api/queue/data?session_hash={attacker.session}") as answer:
        for line in answer.iter_lines():
            if "process_completed" in line:
                return


def noise(width: int, height: int, form: str) -> bytes:
    """Return an image that cannot be compressed."""
    buffer = io.BytesIO()
    pixels = np.frombuffer(os.urandom(width * height * 3), np.uint8).reshape(height, width, 3)
    Image.fromarray(pixels).save(buffer, form, quality=75)
    return buffer.getvalue()


def make_and_delete(attacker: HttpVisitor, picture: bytes) -> None:
    """Queue a video of this image and delete it."""
    address = "data:image/jpeg;base64," + base64.b64encode(picture).decode()
    body = {"model": PRESET, "prompt": "x", "steps": 2, "input_reference": address}
    video = attacker.client.post("/v1/videos", json=body).json()
    attacker.client.delete(f"/v1/videos/{video.get('id')}")


def offer_characters(attacker: HttpVisitor, most: float) -> bool:
    """Queue a storyboard with four characters of 14.5 MB each. Return whether the studio offers the images within `most` s."""
    shots = json.dumps([{"prompt": "Anna walks"}, {"prompt": "Bob walks"}])
    files = {f"figures[figure {number}]": ("a.png", noise(2200, 2200, "PNG")) for number in range(4)}
    fields = {"model": VACE, "prompt": "x", "steps": "1", "shots": shots}
    attacker.client.post("/v1/videos", data=fields, files=files)
    until = time.monotonic() + most
    while time.monotonic() < until:
        if attacker.client.get("/studio/figures").json()["figures"]:
            return True
        time.sleep(1)
    return False


def disk_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(Path(place, name)).st_size
            except OSError:
                continue  # the file was deleted in the meantime
    return total
