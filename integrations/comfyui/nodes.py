"""The nodes. Each generates one video on a studio server, in a thread, so that nodes of several servers run at the same time."""

from __future__ import annotations

import asyncio
import base64
import io as files
import json
import tempfile
import threading
import wave
from pathlib import Path
from typing import Any

import comfy.model_management
import comfy.utils
import folder_paths
import numpy as np
from comfy_api.latest import ComfyExtension, InputImpl, Types, io
from comfy_execution.graph_utils import ExecutionBlocker
from PIL import Image
from server import PromptServer

from .client import DEFAULT_URL, Event, Server, StudioError, find_server, read_keys

KEYS_FILE = "wan_studio_servers.json"  # in ComfyUI's user folder, which ComfyUI does not serve
_BAR = 1000  # steps of the progress bar
_CATEGORY = "Wan Studio"
_LARGEST_SEED = 2**53 - 1  # the largest whole number that a page keeps exact
_StudioServer = io.Custom("WAN_STUDIO_SERVER")


def _server_input() -> Any:
    return _StudioServer.Input("server", optional=True, tooltip=f"The server. Without it: the first server of {KEYS_FILE}.")


def _decode_input() -> Any:
    tooltip = "Also output the frames and the audio. Turn it off to save memory: VIDEO does not need them."
    return io.Boolean.Input("decode", default=True, tooltip=tooltip)


def _settings_inputs() -> list[Any]:
    """Return the inputs that all nodes with a model have. 0 and an empty text leave a setting to the preset."""
    own = "0: the preset's own."
    return [
        io.String.Input("prompt", multiline=True, dynamic_prompts=True, default="", tooltip="What the video shows."),
        io.String.Input("negative_prompt", multiline=True, default="", tooltip="Empty: the preset's own."),
        io.String.Input("model", default="", tooltip="A name of the server node's models. Empty: the server's first model."),
        io.Int.Input("width", default=0, min=0, max=8192, step=8, tooltip=f"Pixels. {own}"),
        io.Int.Input("height", default=0, min=0, max=8192, step=8, tooltip=f"Pixels. {own}"),
        io.Int.Input("frames", default=0, min=0, max=100_000, tooltip=own),
        io.Int.Input("steps", default=0, min=0, max=1000, tooltip=own),
        io.Int.Input("seed", default=1, min=0, max=_LARGEST_SEED, control_after_generate=True),
        io.String.Input(
            "settings", multiline=True, default="", tooltip='Other settings of the studio\'s reference in JSON: {"fps": 24}'
        ),
        _decode_input(),
        _server_input(),
    ]


def _outputs() -> list[Any]:
    return [
        io.Video.Output(display_name="video", tooltip="The studio's file. It contains the request also after Save Video."),
        io.Image.Output(display_name="images"),
        io.Audio.Output(display_name="audio", tooltip="Nothing for a silent video."),
    ]


def _sound_input() -> Any:
    return io.Audio.Input("audio", optional=True, tooltip="Audio that the video follows, for models with audio.")


def _references_input(condition: str = "") -> Any:
    tooltip = f"Images of what the video shows, for models with reference images{condition}. Each image of the batch is one."
    return io.Image.Input("reference_images", optional=True, tooltip=tooltip)


class StudioServer(io.ComfyNode):
    """Chooses a server and checks its key."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="WanStudioServer",
            display_name="Studio Server",
            category=_CATEGORY,
            description="A studio server. Use one node per server: their videos are generated at the same time.",
            inputs=[
                io.String.Input("url", default=DEFAULT_URL, tooltip="The address of the studio's page."),
                io.String.Input(
                    "key",
                    default="",
                    tooltip=f"A program's key. ComfyUI stores it in workflows and saved files: better put it into {KEYS_FILE}.",
                ),
            ],
            outputs=[
                _StudioServer.Output(display_name="server"),
                io.String.Output(display_name="models", tooltip="The server's models, one name per line."),
            ],
        )

    @classmethod
    async def execute(cls, url: str, key: str) -> io.NodeOutput:
        server = find_server(url, key, _keys())
        return io.NodeOutput(server, "\n".join(await asyncio.to_thread(server.list_models)))


class VideoNode(io.ComfyNode):
    """A node that generates a video."""

    @classmethod
    def make_schema(cls, node_id: str, display_name: str, description: str, inputs: list[Any]) -> io.Schema:
        """Return the schema of a node with these inputs."""
        return io.Schema(
            node_id=node_id,
            display_name=display_name,
            category=_CATEGORY,
            description=description,
            inputs=inputs,
            outputs=_outputs(),
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    async def generate(cls, server: Server | None, decode: bool, fields: dict[str, Any]) -> io.NodeOutput:
        """Generate the video with these fields of `/v1/videos`, and show its progress. An interruption stops it."""
        server = server or find_server("", "", _keys())
        node, abandoned = cls.hidden.unique_id, threading.Event()
        bar = comfy.utils.ProgressBar(_BAR, node_id=node)

        def show(event: Event | None) -> None:
            if abandoned.is_set() or comfy.model_management.processing_interrupted():
                raise comfy.model_management.InterruptProcessingException
            if event is not None:
                preview = _read_preview(event["preview"]) if event["preview"] else None
                bar.update_absolute(int(event["fraction"] * _BAR), _BAR, preview)
                PromptServer.instance.send_progress_text(event["text"], node)

        def run() -> io.NodeOutput:
            video = InputImpl.VideoFromFile(files.BytesIO(server.generate(fields, show)))
            if not decode:
                off = ExecutionBlocker("Turn on `decode` of the studio's node to use its images or audio.")
                return io.NodeOutput(video, off, off)
            parts = video.get_components()
            return io.NodeOutput(video, parts.images, parts.audio)

        try:
            return await asyncio.to_thread(run)
        finally:
            abandoned.set()  # another node failed: ComfyUI cancels this node and waits for its thread


class TextToVideo(VideoNode):
    """Generates a video from a prompt."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        about = "Generate a video from a prompt."
        inputs = [*_settings_inputs(), _sound_input(), _references_input()]
        return cls.make_schema("WanStudioTextToVideo", "Studio Text to Video", about, inputs)

    @classmethod
    async def execute(
        cls,
        decode: bool,
        server: Server | None = None,
        audio: dict[str, Any] | None = None,
        reference_images: Any = None,
        **settings: Any,
    ) -> io.NodeOutput:
        given = {"sound": _to_wav(audio), "references": _to_pngs(reference_images)}
        return await cls.generate(server, decode, _to_fields(settings, **given))


class ImageToVideo(VideoNode):
    """Generates a video that starts with an image, and may end with another one."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        inputs = [io.Image.Input("image", tooltip="The first frame, cropped to the video's aspect."), *_settings_inputs()]
        last = io.Image.Input("last_image", optional=True, tooltip="The last frame, for models that take one.")
        about = "Generate a video that starts with an image."
        return cls.make_schema("WanStudioImageToVideo", "Studio Image to Video", about, [*inputs, _sound_input(), last])

    @classmethod
    async def execute(
        cls,
        image: Any,
        decode: bool,
        server: Server | None = None,
        audio: dict[str, Any] | None = None,
        last_image: Any = None,
        **settings: Any,
    ) -> io.NodeOutput:
        images = {"input_reference": _to_png(image[0]), "last_image": None if last_image is None else _to_png(last_image[0])}
        return await cls.generate(server, decode, _to_fields(settings, sound=_to_wav(audio), **images))


class VideoToVideo(VideoNode):
    """Restyles or inpaints a clip."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        about = "Generate a clip, or the masked area of a clip, again with another prompt."
        strength = "How much of the clip changes. 0.3 changes details, 0.8 keeps the motion and large shapes, 1 keeps nothing."
        mask = "The area to change in all frames, for models with control. `strength` is then not used."
        return cls.make_schema(
            "WanStudioVideoToVideo",
            "Studio Video to Video",
            about,
            [
                io.Video.Input("video", tooltip="The clip. It must be as long as the new video, or longer."),
                io.Float.Input("strength", default=0.8, min=0.01, max=1.0, step=0.01, tooltip=strength),
                *_settings_inputs(),
                io.Mask.Input("mask", optional=True, tooltip=mask),
                _references_input(", together with a mask"),
            ],
        )

    @classmethod
    async def execute(
        cls,
        video: Any,
        strength: float,
        decode: bool,
        server: Server | None = None,
        mask: Any = None,
        reference_images: Any = None,
        **settings: Any,
    ) -> io.NodeOutput:
        area = {"strength": strength} if mask is None else {"mask": _to_png(mask.reshape(-1, *mask.shape[-2:])[0])}
        given = area | {"video": await asyncio.to_thread(_to_mp4, video), "references": _to_pngs(reference_images)}
        return await cls.generate(server, decode, _to_fields(settings, **given))


class ExtendVideo(VideoNode):
    """Generates what happens after or before a clip."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        about = "Generate what happens after or before a clip. The new video repeats the overlap."
        overlap = "Number of the clip's frames that the new video repeats. 0: 17, or fewer for short videos."
        return cls.make_schema(
            "WanStudioExtendVideo",
            "Studio Extend Video",
            about,
            [
                io.Video.Input("video"),
                io.Combo.Input("direction", options=["after", "before"], default="after"),
                io.Int.Input("overlap", default=0, min=0, max=1000, tooltip=overlap),
                *_settings_inputs(),
            ],
        )

    @classmethod
    async def execute(
        cls, video: Any, direction: str, overlap: int, decode: bool, server: Server | None = None, **settings: Any
    ) -> io.NodeOutput:
        clip = await asyncio.to_thread(_to_mp4, video)
        return await cls.generate(server, decode, _to_fields(settings, video=clip, extend=direction, overlap=overlap or None))


class UpscaleVideo(VideoNode):
    """Enlarges a clip."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return cls.make_schema(
            "WanStudioUpscaleVideo",
            "Studio Upscale Video",
            "Enlarge a clip 2 or 4 times.",
            [
                io.Video.Input("video"),
                io.Combo.Input("scale", options=["2", "4"], default="2"),
                io.String.Input("upscaler", default="", tooltip="An upscaler of the server. Empty: the studio's own."),
                _decode_input(),
                _server_input(),
            ],
        )

    @classmethod
    async def execute(cls, video: Any, scale: str, upscaler: str, decode: bool, server: Server | None = None) -> io.NodeOutput:
        fields: dict[str, Any] = {"finished_video": await asyncio.to_thread(_to_mp4, video), "upscale": int(scale)}
        return await cls.generate(server, decode, fields | ({"upscaler": upscaler.strip()} if upscaler.strip() else {}))


class StudioExtension(ComfyExtension):
    """The list of nodes."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [StudioServer, TextToVideo, ImageToVideo, VideoToVideo, ExtendVideo, UpscaleVideo]


async def comfy_entrypoint() -> StudioExtension:
    """Return the extension. ComfyUI calls this function."""
    return StudioExtension()


def _keys() -> dict[str, str]:
    return read_keys(Path(folder_paths.get_user_directory()) / KEYS_FILE)


def _to_fields(settings: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the fields of the request. `settings` are the values of `_settings_inputs`. Raises: StudioError."""
    try:
        others = json.loads(settings["settings"] or "{}")
    except ValueError:
        others = None
    if not isinstance(others, dict):
        raise StudioError('The settings must be a JSON object, such as {"fps": 24}: correct them or leave them empty')
    given = {"model": settings["model"].strip(), "negative_prompt": settings["negative_prompt"]}
    given |= {name: settings[name] for name in ("width", "height", "steps")} | {"num_frames": settings["frames"]}
    fields = {"prompt": settings["prompt"], "seed": settings["seed"], **{name: value for name, value in given.items() if value}}
    return fields | {name: value for name, value in more.items() if value is not None} | others


def _to_data_url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _to_png(image: Any) -> str:
    """Return an image, float [H, W, C] in [0, 1], or a mask, float [H, W] in [0, 1], as a PNG data URL."""
    values = image.cpu().numpy()
    pixels = ((values if values.ndim == 2 else values[..., :3]) * 255).round().clip(0, 255).astype(np.uint8)
    file = files.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return _to_data_url("image/png", file.getvalue())


def _to_pngs(images: Any) -> list[str] | None:
    """Return each of `images`, float [B, H, W, C] in [0, 1], as a PNG data URL. None if the input is not connected."""
    return None if images is None else [_to_png(image) for image in images]


def _to_wav(audio: dict[str, Any] | None) -> str | None:
    """Return audio with a `waveform`, float [B, C, T] in [-1, 1], as a WAV data URL with 16 bits."""
    if audio is None:
        return None
    samples = (audio["waveform"][0].cpu().numpy().clip(-1, 1) * 32767).round().astype("<i2")
    file = files.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(samples.shape[0])
        writer.setsampwidth(2)
        writer.setframerate(int(audio["sample_rate"]))
        writer.writeframes(samples.T.tobytes())
    return _to_data_url("audio/wav", file.getvalue())


def _to_mp4(video: Any) -> str:
    """Return a VIDEO as an mp4 data URL. ComfyUI copies the streams of an mp4 file and encodes other videos."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "video.mp4"
        video.save_to(str(path), format=Types.VideoContainer.MP4, codec=Types.VideoCodec.AUTO)
        return _to_data_url("video/mp4", path.read_bytes())


def _read_preview(url: str) -> tuple[str, Image.Image, None]:
    """Return a preview in the form of ComfyUI's progress: format, image, and no limit of its size."""
    with Image.open(files.BytesIO(base64.b64decode(url.partition(",")[2]))) as image:
        return "JPEG", image.convert("RGB"), None
