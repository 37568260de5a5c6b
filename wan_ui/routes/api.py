"""The endpoint for programs: `/generate`, through gradio_client or plain HTTP. Its name and arguments are stable.

    client = gradio_client.Client("http://127.0.0.1:7860/")
    video, facts = client.predict("a red circle moving right", api_name="/generate")
    video, facts = client.predict("...", "wan-tiny", gradio_client.handle_file("first.png"), {"steps": 8, "seed": 1},
                                  api_name="/generate")

A call waits in the same queue as all other videos and returns when its video is done.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from backend.engine.engine import Engine
from backend.errors import RequestError, StudioError, short
from backend.schemas.events import VideoResult
from backend.schemas.request import GenerationRequest, find_preset
from backend.schemas.settings import FOR_PROGRAMS
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
"""Files that come among the settings, and what each is."""
_WHAT: dict[str, UploadKind] = {"image": "image", "sound": "sound", "track": "sound"}


def add_api(context: StudioContext) -> None:
    """Adds the endpoint to the page that is being built."""
    gr.api(_generate_with(context), api_name="generate", concurrency_limit=None)


def _generate_with(context: StudioContext) -> Callable[..., Coroutine[Any, Any, tuple[dict[str, Any], dict[str, Any]]]]:
    # Gradio makes the API's description of these annotations, and knows a JSON object by a plain `dict` alone
    async def generate(
        prompt: str,
        preset: str = "",
        image: dict | None = None,  # ty: ignore[missing-type-argument]
        settings: dict | None = None,  # ty: ignore[missing-type-argument]
        request: gr.Request = None,  # ty: ignore[invalid-parameter-default]  # Gradio always gives it
    ) -> tuple[dict, dict]:  # ty: ignore[missing-type-argument]
        """Makes a video.

        Parameters:
            prompt: what the video shows
            preset: name of a preset; empty for the first
            image: the first frame as an uploaded file, for image to video
            settings: values to use in place of the preset's own: negative_prompt, width, height, num_frames, fps,
                steps, guidance (a list, one value per expert), guided_steps (only so many first ones have guidance),
                cfg_zero (true for CFG-Zero*), mag_cache (MagCache's error, 0.24 for Wan 2.1; 0 is off),
                nag (how strongly the negative prompt acts without guidance),
                progressive (1 to 4: the first steps at half the size),
                upscale (2 or 4: the finished video so many times larger) with upscaler (a model's name),
                context_windows (false for a long video in one piece),
                shots (a list of {"prompt": "...", "seconds": 2, "seed": 1}, each from the last frames of the one before; with
                "cut": true from its words, with "fade" over so many seconds of the one before; {"job": "..."} for a video of
                yours as it is, with "trim": [from, to] in seconds: if all are, the film is cut without a model),
                track (a sound as an uploaded file, below all shots) with track_start, track_fade (seconds), track_volume,
                again ({"job": ..., "from_shot": 2}: that storyboard's earlier shots are kept),
                for shots of presets of VACE: figures (a list of {"name": "Anna", "image": a file}: a shot whose prompt names one
                is shown that picture),
                flow_shift, solver, seed, and for live presets cues: a list
                of {"block": 8, "prompt": "...", "action": "left"}, either of the last two, that hold from that block on;
                video: a clip as an uploaded file, which is made anew, with strength (0 to 1) and trim ([from, to] in seconds);
                for models that make sound: sound (an uploaded file, which the picture follows) with sound_start (seconds), make
                ("sound" for that of the video alone, whose pictures stay), keeps_sound (false for none);
                for presets that animate: drive (a clip as an uploaded file, whose movements the figure in the image makes), with
                trim and drive_prompt, or each of the shots a "drive" of its own (a path of an uploaded file); where drive is a
                clip of poses, face (a clip of one), and video with mask to be put into;
                for presets of VACE and LTX-2: keyframes (a list of {"frame": 0, "image": a file});
                control (a clip as an uploaded file), control_kind ("as-is", "edges", "grey"), control_scale, and for LTX-2
                control_downscale (1, or 2 for a LoRA that was trained with clips of half the size);
                for presets of VACE: mask (an uploaded file), references (a list of them), margins (a list: left, top, right,
                bottom, in pixels), extend ("after" or "before" the video), overlap (frames), keeps_pixels
        Returns:
            the video file, and its facts: job_id, seed, width, height, num_frames, fps, seconds by stage,
            and the rates of its arithmetic: floating-point operations a second and, on a TPU, their share of its peak (mfu)
        """
        try:
            settings, again = _without_again(settings)
            wanted = Wanted.of(prompt, preset, image, *without_files(settings))
            caller = context.identify_caller(request)
            preset_named, values = await asyncio.to_thread(wanted.values, context.preset_names(caller)[0])
            job = await context.submit(await request_from_settings(context, caller, preset_named, values), caller, again)
            result = await _wait(context.engine, job.id)
        except StudioError as error:
            raise gr.Error(shorten_paths(str(error)), print_exception=False) from None
        rates = {stage: dataclasses.asdict(rate) for stage, rate in result.rates.items()}
        assert request.request is not None, "Gradio makes it of the caller's request"
        return _file(video_url(job.id, request.request, context.access)), facts_of(job.id, result) | {"rates": rates}

    return generate


def _without_again(settings: object) -> tuple[Any, tuple[str, int] | None]:
    """The settings, and which storyboard is made again from which shot on. Raises: RequestError."""
    if not isinstance(settings, dict) or settings.get("again") is None:
        return settings, None
    again = settings["again"]
    if not (isinstance(again, dict) and isinstance(again.get("job"), str) and isinstance(again.get("from_shot"), int)):
        raise RequestError(f"again={short(again)}", 'must be {"job": ..., "from_shot": N}', "correct it")
    return {name: value for name, value in settings.items() if name != "again"}, (again["job"], again["from_shot"])


def without_files(settings: object) -> tuple[Any, dict[str, Any] | None]:
    """The settings, and the files that were among them by role; whatever came, if it is no object."""
    if not isinstance(settings, dict):
        return settings, None
    files = {name: value for name, value in settings.items() if name in FILES}
    return {name: value for name, value in settings.items() if name not in FILES}, files


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A call's arguments, as they came from outside."""

    prompt: str
    preset: str
    image: dict[str, Any] | None
    settings: dict[str, Any]
    files: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, prompt: Any, preset: Any, image: Any, settings: Any, files: dict[str, Any] | None = None) -> "Wanted":
        """The arguments, which may be anything; None counts as left out. Raises: RequestError for one of the wrong kind."""
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
                raise RequestError(f"{name}={short(value)}", f"must be {words}", f"correct {name}")
        return cls(prompt=prompt or "", preset=preset or "", image=image, settings=settings or {}, files=files or {})

    def to_request(self, usual: str = "") -> GenerationRequest:
        """The request; `usual` is the preset if none is named, else the first of all. Raises: RequestError."""
        preset, values = self.values(usual)
        return GenerationRequest.from_preset(preset, **values)

    def values(self, usual: str = "") -> tuple[Preset, dict[str, Any]]:
        """The preset and the request's settings. Raises: RequestError."""
        unknown = sorted(set(self.settings) - FOR_PROGRAMS)
        if unknown:
            rule = f"may have {', '.join(sorted(FOR_PROGRAMS))}"
            raise RequestError(f"settings has {unknown[0]!r} and", rule, "correct its name or leave it out")
        preset = find_preset(self.preset or usual or list_presets()[0].name)
        return preset, {"prompt": self.prompt, **self._paths(), **self.settings}

    def _paths(self) -> dict[str, Any]:
        """The uploaded files' paths by the request's fields. Raises: ImageError, ClipError, SoundError, RequestError."""
        files = {name: value for name, value in {"image": self.image, **self.files}.items() if value}
        paths: dict[str, Any] = {}
        for name, value in files.items():
            if name == "keyframes":
                frames = [_keyframe(one) for one in value]
                paths["keyframe_at"] = tuple(number for number, _ in frames)
                paths[name] = tuple(path for _, path in frames)
            elif name == "figures":
                paths[name] = tuple(_figure(one) for one in value)
            elif name == "references":
                paths[name] = tuple(_path(one, "image") for one in value)
            else:
                paths[name] = _path(value, _WHAT.get(name, "clip"))
        return paths


def _keyframe(given: object) -> tuple[Any, str]:
    if not isinstance(given, dict) or given.keys() != {"frame", "image"}:
        raise RequestError(f"keyframes has {short(given)}", 'and must have {"frame": 0, "image": a file}', "correct it")
    return given["frame"], _path(given["image"], "image")


def _figure(given: object) -> dict[str, Any]:
    if not isinstance(given, dict) or given.keys() != {"name", "image"}:
        raise RequestError(f"figures has {short(given)}", 'and must have {"name": "Anna", "image": a file}', "correct it")
    return {"name": given["name"], "image": _path(given["image"], "image")}


def _path(file: Any, what: UploadKind) -> str:
    return str(uploaded_path(file, what))


async def _wait(engine: Engine, job_id: str) -> VideoResult:
    """The job's video. Raises: StudioError if there is none."""
    view = None
    async for view in follow_job(engine, job_id):  # noqa: B007 - the last one counts
        pass
    return finished_video(view)


def finished_video(view: StageView | None) -> VideoResult:
    """The video in a job's last view. Raises: StudioError if there is none."""
    if view is None or view.phase != "finished" or view.result is None:
        cause = view.cause if view and view.cause else "the video was stopped"
        raise StudioError(cause, fix=view.fix if view else "")
    return view.result


def _file(address: str) -> dict[str, Any]:
    """The video at its own address. Gradio does not copy a stream, and its clients fetch it from its address; it would copy any
    other file, and serve that to everybody who is logged in."""
    return gr.FileData(path=address, url=address, mime_type="video/mp4", is_stream=True).model_dump()


def facts_of(job_id: str, result: VideoResult) -> dict[str, Any]:
    """A finished video in plain values."""
    names = ("width", "height", "num_frames", "fps", "seconds")
    return {"job_id": job_id, "seed": result.request.seed} | {name: getattr(result, name) for name in names}
