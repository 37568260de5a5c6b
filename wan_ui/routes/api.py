"""`/generate`, the endpoint for programs, through gradio_client or plain HTTP. Its name and arguments are stable.

    client = gradio_client.Client("http://127.0.0.1:7860/")
    video, facts = client.predict("a red circle moving right", api_name="/generate")
    video, facts = client.predict("...", "wan-tiny", gradio_client.handle_file("first.png"), {"steps": 8, "seed": 1},
                                  api_name="/generate")

A call waits in the queue of all videos and returns when its video is finished.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from backend.engine.engine import Engine
from backend.errors import RequestError, StudioError, shorten
from backend.schemas.events import VideoResult
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import FOR_PROGRAMS, find_preset
from presets import Preset, list_presets
from wan_ui.components.field_errors import shorten_paths
from wan_ui.components.progress import StageView
from wan_ui.gateway.uploads import UploadKind, uploaded_path
from wan_ui.services.animate_request import request_from_settings
from wan_ui.services.job_followers import follow_job
from wan_ui.services.media import video_url
from wan_ui.services.studio_context import StudioContext

FILES = {
    **dict.fromkeys(("video", "control", "mask", "sound", "track", "drive", "face"), (dict, "a file")),
    "references": (list, "a list of files"),
    "keyframes": (list, 'a list of {"frame": 0, "image": a file}'),
    "figures": (list, 'a list of {"name": "Anna", "image": a file}'),
}
"""Settings that are files, with the type of each and its description in errors."""
_UPLOAD_KINDS: dict[str, UploadKind] = {"image": "image", "sound": "sound", "track": "sound"}


def add_api(context: StudioContext) -> None:
    """Add the endpoint to the current Gradio page."""
    gr.api(_make_generate(context), api_name="generate", concurrency_limit=None)


def _make_generate(context: StudioContext) -> Callable[..., Coroutine[Any, Any, tuple[dict[str, Any], dict[str, Any]]]]:
    # Gradio builds the API description from these annotations. It recognizes a JSON object only by a plain `dict`.
    async def generate(
        prompt: str,
        preset: str = "",
        image: dict | None = None,  # ty: ignore[missing-type-argument]
        settings: dict | None = None,  # ty: ignore[missing-type-argument]
        request: gr.Request = None,  # ty: ignore[invalid-parameter-default]  # Gradio always passes it
    ) -> tuple[dict, dict]:  # ty: ignore[missing-type-argument]
        """Generate a video.

        Parameters:
            prompt: what the video shows
            preset: name of a preset; empty for the first
            image: the first frame as an uploaded file, for image to video
            settings: values that replace the preset's defaults, by name

        Settings for all videos:

        - negative_prompt, width, height, num_frames, fps, steps, flow_shift, solver, seed
        - guidance: a list, one value per expert
        - guided_steps: the number of first steps with guidance
        - cfg_zero: true for CFG-Zero*
        - mag_cache: MagCache's error, 0.24 for Wan 2.1, 0 for off
        - nag: the strength of the negative prompt without guidance
        - progressive: 1 to 4, the first steps run at half the size
        - upscale: 2 or 4 to enlarge the finished video, with upscaler, a model's name
        - context_windows: false to denoise a long video in one piece

        Settings for storyboards:

        - shots: a list of {"prompt": "...", "seconds": 2, "seed": 1}. A shot starts with the last frames of the previous shot, or
          fresh from its prompt with "cut": true. "fade" is a cross-fade with the previous shot, in seconds. {"job": "..."} uses
          one of your videos unchanged, with "trim": [from, to] in seconds. If all shots are such videos,
          no model runs.
        - track: a soundtrack as an uploaded file, with track_start, track_fade (seconds) and track_volume
        - again: {"job": ..., "from_shot": 2} regenerates a storyboard from this shot on and keeps its earlier shots
        - figures, for VACE presets: characters, a list of {"name": "Anna", "image": a file}. A shot whose prompt contains the
          name shows the character.

        Settings for some presets:

        - cues, for live presets: a list of {"block": 8, "prompt": "...", "action": "left"} with a prompt, an action or both, used
          from this block on
        - video: a clip as an uploaded file, which is regenerated, with strength (0 to 1) and trim ([from, to] in seconds)
        - sound, for models with audio: an uploaded file that the video follows, with sound_start (seconds)
        - make, for models with audio: "sound" generates only audio for the clip
        - keeps_sound: false for no audio
        - drive, for Animate presets: a driving video as an uploaded file, with trim and drive_prompt. The person in the image
          moves as the person in the driving video. Each shot may have its own "drive", the path of an uploaded file.
        - face: a clip of a face, if drive is a clip of poses
        - mask, for Animate presets: an uploaded file with the person to replace in video
        - keyframes, for VACE and LTX-2 presets: a list of {"frame": 0, "image": a file}
        - control: a clip as an uploaded file, with control_kind ("as-is", "edges", "grey") and control_scale
        - control_downscale, for LTX-2: 1, or 2 for a LoRA that was trained with clips of half the size
        - for VACE presets: mask (an uploaded file), references (a list of files), margins (a list: left, top, right, bottom, in
          pixels), extend ("after" or "before" the video), overlap (frames), keeps_pixels

        Returns:
            the video file, and its facts: job_id, seed, width, height, num_frames, fps, seconds by stage, and rates. Rates are
            floating-point operations per second and, on a TPU, their share of the chip's peak (mfu).
        """
        try:
            settings, again = _split_again(settings)
            wanted = GenerateArguments.parse_arguments(prompt, preset, image, *split_files(settings))
            caller = context.identify_caller(request)
            preset_named, values = await asyncio.to_thread(wanted.resolve_settings, context.preset_names(caller)[0])
            job = await context.submit(await request_from_settings(context, caller, preset_named, values), caller, again)
            result = await _wait_for_video(context.engine, job.id)
        except StudioError as error:
            raise gr.Error(shorten_paths(str(error)), print_exception=False) from None
        rates = {stage: dataclasses.asdict(rate) for stage, rate in result.rates.items()}
        assert request.request is not None, "Gradio always passes the caller's request"
        return _file_data(video_url(job.id, request.request, context.access)), video_facts(job.id, result) | {"rates": rates}

    return generate


def _split_again(settings: object) -> tuple[Any, tuple[str, int] | None]:
    """Return the settings without `again`, and `again` as (job id, first regenerated shot) or None. Raises: RequestError."""
    if not isinstance(settings, dict) or settings.get("again") is None:
        return settings, None
    again = settings["again"]
    if not (isinstance(again, dict) and isinstance(again.get("job"), str) and isinstance(again.get("from_shot"), int)):
        raise RequestError(f"again={shorten(again)}", 'must be {"job": ..., "from_shot": N}', "correct it")
    return {name: value for name, value in settings.items() if name != "again"}, (again["job"], again["from_shot"])


def split_files(settings: object) -> tuple[Any, dict[str, Any] | None]:
    """Return the settings without files, and the files by setting. A value that is not an object is returned unchanged."""
    if not isinstance(settings, dict):
        return settings, None
    files = {name: value for name, value in settings.items() if name in FILES}
    return {name: value for name, value in settings.items() if name not in FILES}, files


@dataclass(frozen=True, kw_only=True)
class GenerateArguments:
    """A call's arguments. Only their types are checked."""

    prompt: str
    preset: str
    image: dict[str, Any] | None
    settings: dict[str, Any]
    files: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse_arguments(
        cls, prompt: Any, preset: Any, image: Any, settings: Any, files: dict[str, Any] | None = None
    ) -> "GenerateArguments":
        """Check the types of untrusted arguments. None counts as missing. Raises: RequestError for a wrong type."""
        given = {"prompt": prompt, "preset": preset, "image": image, "settings": settings, **(files or {})}
        kinds = {
            "prompt": (str, "a text"),
            "preset": (str, "a preset's name"),
            "image": (dict, "a file"),
            "settings": (dict, "an object"),
            **FILES,
        }
        for name, value in given.items():
            kind, words = kinds[name]
            if value is not None and not isinstance(value, kind):
                raise RequestError(f"{name}={shorten(value)}", f"must be {words}", f"correct {name}")
        return cls(prompt=prompt or "", preset=preset or "", image=image, settings=settings or {}, files=files or {})

    def to_request(self, default_preset: str = "") -> GenerationRequest:
        """Return the request. A call without a preset uses `default_preset`, or the first preset if "". Raises: RequestError."""
        preset, values = self.resolve_settings(default_preset)
        return GenerationRequest.from_preset(preset, **values)

    def resolve_settings(self, default_preset: str = "") -> tuple[Preset, dict[str, Any]]:
        """Return the preset and the request's settings. Raises: RequestError."""
        unknown = sorted(set(self.settings) - FOR_PROGRAMS)
        if unknown:
            rule = f"may have {', '.join(sorted(FOR_PROGRAMS))}"
            raise RequestError(f"settings has {unknown[0]!r} and", rule, "correct its name or leave it out")
        preset = find_preset(self.preset or default_preset or list_presets()[0].name)
        return preset, {"prompt": self.prompt, **self._upload_paths(), **self.settings}

    def _upload_paths(self) -> dict[str, Any]:
        """Return the paths of uploaded files by request field. Raises: ImageError, ClipError, SoundError, RequestError."""
        files = {name: value for name, value in {"image": self.image, **self.files}.items() if value}
        paths: dict[str, Any] = {}
        for name, value in files.items():
            if name == "keyframes":
                frames = [_parse_keyframe(one) for one in value]
                paths["keyframe_at"] = tuple(number for number, _ in frames)
                paths[name] = tuple(path for _, path in frames)
            elif name == "figures":
                paths[name] = tuple(_parse_character(one) for one in value)
            elif name == "references":
                paths[name] = tuple(_upload_path(one, "image") for one in value)
            else:
                paths[name] = _upload_path(value, _UPLOAD_KINDS.get(name, "clip"))
        return paths


def _parse_keyframe(given: object) -> tuple[Any, str]:
    if not isinstance(given, dict) or given.keys() != {"frame", "image"}:
        raise RequestError(f"keyframes has {shorten(given)}", 'and must have {"frame": 0, "image": a file}', "correct it")
    return given["frame"], _upload_path(given["image"], "image")


def _parse_character(given: object) -> dict[str, Any]:
    if not isinstance(given, dict) or given.keys() != {"name", "image"}:
        raise RequestError(f"figures has {shorten(given)}", 'and must have {"name": "Anna", "image": a file}', "correct it")
    return {"name": given["name"], "image": _upload_path(given["image"], "image")}


def _upload_path(file: Any, what: UploadKind) -> str:
    return str(uploaded_path(file, what))


async def _wait_for_video(engine: Engine, job_id: str) -> VideoResult:
    """Wait for the job's video. Raises: StudioError if the job fails or is stopped."""
    view = None
    async for view in follow_job(engine, job_id):  # noqa: B007 - the last one counts
        pass
    return finished_video(view)


def finished_video(view: StageView | None) -> VideoResult:
    """Return the video from the last `StageView` of a job. Raises: StudioError if the job did not finish."""
    if view is None or view.phase != "finished" or view.result is None:
        cause = view.cause if view and view.cause else "the video was stopped"
        raise StudioError(cause, fix=view.fix if view else "")
    return view.result


def _file_data(address: str) -> dict[str, Any]:
    """Return Gradio's file data with the video's address.

    The video is marked as a stream, because Gradio copies other files and serves the copy to all visitors who are logged in.
    """
    return gr.FileData(path=address, url=address, mime_type="video/mp4", is_stream=True).model_dump()


def video_facts(job_id: str, result: VideoResult) -> dict[str, Any]:
    """Return the facts of a finished video as JSON values."""
    names = ("width", "height", "num_frames", "fps", "seconds")
    return {"job_id": job_id, "seed": result.request.seed} | {name: getattr(result, name) for name in names}
