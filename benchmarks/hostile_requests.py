"""Hostile requests to a running studio, with their files, for `benchmarks.strangers`."""

import base64
import io
import json
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import imageio_ffmpeg
from PIL import Image

from backend.media.sandbox import LONG_SECONDS, QUICK_SECONDS

MOST_MB, MOST_SECONDS = 300, 2.0  # limits of one hostile request


class HttpVisitor:
    """A visitor with an address and a cookie, who calls the page's handlers over HTTP."""

    def __init__(self, url: str, headers: dict[str, str] | None = None, timeout: float = 120):
        self.client = httpx.Client(base_url=url, headers=headers or {}, timeout=timeout)
        self.client.get("/")
        self.config = self.client.get("/config").json()
        self.session = f"attacker{id(self):x}"
        self._props = {component["id"]: component["props"] for component in self.config["components"]}

    def call(self, handler: str, given: dict[str, Any], event: Any = None, query: str = "") -> httpx.Response:
        """Call a handler by its name in the studio's code and return the answer. `given` has values by element id."""
        function = next(one for one in self.config["dependencies"] if one["api_name"] == handler)
        props = [self._props[component] for component in function["inputs"]]
        data = [given.get(each.get("elem_id"), each.get("value")) for each in props]
        message = {"data": data, "fn_index": function["id"], "session_hash": self.session, "event_data": event}
        return self.client.post(f"/gradio_api/run/predict{query}", json=message)

    def upload(self, name: str, content: bytes) -> str:
        """Upload a file and return its path on the server."""
        return self.client.post("/gradio_api/upload", files={"files": (name, content)}).json()[0]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """A hostile request: the function that sends it, and the seconds and MB that a single request may take."""

    send: Callable[[], Any]
    seconds: float = MOST_SECONDS
    megabytes: int = MOST_MB


def attacks(attacker: HttpVisitor, folder: Path) -> dict[str, Attack]:
    """Return the hostile requests by description. Their files are uploaded here, before the measurement."""
    return {
        **{what: Attack(send=send) for what, send in (_of_pictures(attacker, folder) | _of_words(attacker)).items()},
        **_of_slow_files(attacker, folder),
    }


def _of_pictures(attacker: HttpVisitor, folder: Path) -> dict[str, Callable[[], Any]]:
    thin = attacker.upload("thin.png", red_picture(32_000, 16))
    large = attacker.upload("large.png", red_picture(7000, 7000))
    boxes = attacker.upload("boxes.mp4", _boxes(8_000_000))
    pages = attacker.upload("mask.tif", _pages(60_000))
    clip = attacker.upload("clip.mp4", _clip(folder, "64x64:r=8:d=2"))
    post = attacker.client.post
    return {
        "bars around a picture of 32000x16": lambda: attacker.call("pad_image", with_picture(thin)),
        "preview of a picture of 49 MP": lambda: attacker.call("show_new_image", with_picture(large)),
        "video of 8 MB of empty boxes": lambda: attacker.call("drop", {}, {"what": "drop", "value": boxes}),
        "mask of 60,000 pages": lambda: post("/studio/edit/mask", json={"mask": pages, "clip": clip}),
        "invalid images": lambda: post("/studio/edit/picture", json={"picture": boxes}),
    }


def _of_slow_files(attacker: HttpVisitor, folder: Path) -> dict[str, Attack]:
    clear = attacker.upload("clear.png", red_picture(7000, 7000, "RGBA"))
    large = attacker.upload("video.mp4", _video(folder, 16_200, "png"))
    many = attacker.upload("many.mp4", _clip(folder, "16x16:r=1000:d=120"))
    heavy = attacker.upload("heavy.mp4", _video(folder, 5_900, "libx265", "-pix_fmt", "yuv444p10le", "-preset", "ultrafast"))
    drop = lambda path: attacker.call("drop", {}, {"what": "drop", "value": path})  # noqa: E731
    return {
        "preview of a transparent picture of 49 MP": Attack(
            send=lambda: attacker.call("show_new_image", with_picture(clear)), seconds=QUICK_SECONDS
        ),
        "video with a frame of 16200x16200": Attack(send=lambda: drop(large)),
        "video with a frame of 5900x5900, HEVC, 4:4:4": Attack(send=lambda: drop(heavy), seconds=QUICK_SECONDS, megabytes=400),
        "clip of 120 s at 1000 fps": Attack(
            send=lambda: attacker.client.post("/studio/edit/clip", json={"clip": many}), seconds=LONG_SECONDS
        ),
    }


def _of_words(attacker: HttpVisitor) -> dict[str, Callable[[], Any]]:
    nested, post, get = "[" * 100_000, attacker.client.post, attacker.client.get
    wide = b'{"prompt":[' + b",".join([b'{"":0}'] * 140_000) + b"]}"
    links = {"guidance": {"guidance": []}, "steps": {"steps": 10**30}, "size": {"width": 10**9}}
    call = {"name": "generate_video", "arguments": {"prompt": "x", "preset": "wan2.1-t2v-14b-720p"}}
    missing = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    return {
        "search for 50 MB of text": lambda: attacker.call("search", {"library-search": "x" * 50_000_000}),
        "preset of 900,000 letters": lambda: attacker.call("choose_preset", {"preset": "x" * 900_000}),
        "body of 300 MB": lambda: send_body(attacker.client, 300_000_000),
        "JSON of 980 KB, a list of objects": lambda: post("/v1/videos", content=wide, headers=_JSON),
        "JSON of 59 MB, beginnings of data URLs": lambda: post("/v1/videos", content=b'"data:' * 9_800_000, headers=_JSON),
        "JSON of 59 MB, quotation marks": lambda: post("/v1/videos", content=b'"' * 59_000_000, headers=_JSON),
        "JSON of 20 MB, a list of objects": lambda: post("/v1/videos", content=wide * 20, headers=_JSON),
        "recording of 38 MB": lambda: post("/gradio_api/process_recording", files={"file": ("a.mp4", b"x" * 38_000_000)}),
        "upload under another name, 38 MB": lambda: post("/gradio_api/upload", files={"other": ("a", b"x" * 38_000_000)}),
        "deep link of the session": lambda: get(f"/gradio_api/deep_link?session_hash={attacker.session}"),
        "a handler's name with a new line": lambda: post("/gradio_api/run/a%0aTEXT%1b[31m", json={"data": []}),
        "a comparison that is not there": lambda: get("/studio/compare/x.mp4"),
        "JSON of 100,000 brackets": lambda: [post(path, content=nested, headers=_JSON) for path in _TAKE_JSON],
        "a preset that is not here": lambda: post("/mcp", json=missing),
        **{f"link with an impossible {name}": _linked(attacker, changes) for name, changes in links.items()},
    }


_JSON = {"content-type": "application/json"}
_TAKE_JSON = ("/mcp", "/gradio_api/run/predict", "/v1/videos", "/studio/live", "/studio/live/x/say", "/studio/edit/mask")


def with_picture(path: str) -> dict[str, Any]:
    """Return the form's values with an uploaded image as first frame."""
    return {"input-image": {"path": path}, "resolution": "96x96"}


def _linked(attacker: HttpVisitor, changes: dict[str, Any]) -> Callable[[], Any]:
    data: dict[str, Any] = {
        "preset": "wan-tiny",
        "task": "t2v",
        "prompt": "x",
        "width": 96,
        "height": 96,
        "num_frames": 17,
        "fps": 16,
    }
    data |= {"steps": 20, "guidance": [1.0], "flow_shift": 3, "seed": 1} | changes
    code = base64.urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip("=")
    return lambda: attacker.call("open", {}, query=f"?settings={code}")


def red_picture(width: int, height: int, mode: str = "RGB") -> bytes:
    """Return a red PNG of this size in pixels."""
    buffer = io.BytesIO()
    Image.new(mode, (width, height), "red").save(buffer, "PNG")
    return buffer.getvalue()


def _pages(count: int) -> bytes:
    """Return a TIFF with `count` pages of one pixel, 42 bytes each."""
    entries = b"".join(struct.pack("<HHII", tag, 3, 1, value) for tag, value in ((256, 16), (257, 16), (273, 8)))
    size = 2 + len(entries) + 4
    places = [*(8 + size * number for number in range(1, count)), 0]
    return b"II*\0" + struct.pack("<I", 8) + b"".join(struct.pack("<H", 3) + entries + struct.pack("<I", at) for at in places)


def _video(folder: Path, side: int, *codec: str) -> bytes:
    """Return a video of one frame with a request in the file's comment, so that the page shows it."""
    source = ["-f", "lavfi", "-i", f"color=red:s={side}x{side}:r=1:d=1", "-frames:v", "1", "-c:v", *codec]
    request: dict[str, Any] = {"preset": "wan-tiny", "task": "i2v", "prompt": "x", "width": 96, "height": 96}
    request |= {"num_frames": 17, "fps": 16, "steps": 20, "guidance": [1.0], "flow_shift": 3, "seed": 1, "image": "a"}
    return _made(folder / f"{side}.mp4", *source, "-metadata", f"comment={json.dumps({'format': 1, 'request': request})}")


def _clip(folder: Path, shape: str) -> bytes:
    source = ["-f", "lavfi", "-i", f"color=red:s={shape}", "-c:v", "libx264", "-preset", "ultrafast"]
    return _made(folder / "clip.mp4", *source, "-pix_fmt", "yuv420p")


def _made(path: Path, *words: str) -> bytes:
    subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", *words, str(path)], check=True)
    return path.read_bytes()


def _boxes(size: int) -> bytes:
    return struct.pack(">I4sI4s", 16, b"ftyp", 0, b"isom") + struct.pack(">I4s", 8, b"moov") * (size // 8)


def send_body(client: httpx.Client, size: int) -> None:
    """Send a long body. A closed connection counts as an answer."""

    def pieces() -> Iterator[bytes]:
        yield b'{"data":["'
        for _ in range(size // 1_000_000):
            yield b"a" * 1_000_000
        yield b'"]}'

    try:
        client.post("/gradio_api/queue/join", content=pieces(), headers={"content-type": "application/json"})
    except httpx.HTTPError:
        pass
