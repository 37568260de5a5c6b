"""`/generate`, the endpoint for programs, through gradio_client or plain HTTP. Its name and arguments are stable.

    client = gradio_client.Client("http://127.0.0.1:7860/")
    video, facts = client.predict("a red circle moving right", api_name="/generate")
    video, facts = client.predict("...", "wan-tiny", gradio_client.handle_file("first.png"), {"steps": 8, "seed": 1},
                                  api_name="/generate")

    for video, facts in client.submit("...", api_name="/generate"):
        print(facts)  # the progress, and in the last pair the facts of the video

A call waits in the queue of all videos. It yields the progress and ends with the video. `predict` returns only the last pair.
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from backend.errors import RequestError, StudioError, shorten
from backend.schemas.events import VideoResult
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import FOR_PROGRAMS, INPUTS, SETTINGS, find_preset
from presets import Preset, list_presets
from wan_ui.components.field_errors import shorten_paths
from wan_ui.components.progress import StageView, progress_texts
from wan_ui.gateway.rules import API
from wan_ui.gateway.uploads import UploadKind, uploaded_path
from wan_ui.i18n.english import ENGLISH
from wan_ui.services.animate_request import request_from_settings
from wan_ui.services.job_followers import follow_job
from wan_ui.services.media import video_url
from wan_ui.services.studio_context import StudioContext

_LABELLED = {"keyframes": ("frame", '{"frame": 0, "image": a file}'), "figures": ("name", '{"name": "Anna", "image": a file}')}
"""Lists of labelled images, with the key of the label and an example of an entry."""
FILES = {
    **{one.name: (dict, "a file") for one in INPUTS if not one.is_list and one.name not in ("image", "finished_video")},
    "references": (list, "a list of files"),
    **{name: (list, f"a list of {example}") for name, (_, example) in _LABELLED.items()},
}
"""Settings that are files, with the type of each and its description in errors."""
_DESCRIPTION = """Generate a video from a prompt. `preset` is a model's name, by default the best installed model. `image` is the
first frame. Returns the video, and its facts: job_id, preset, seed, width, height, num_frames, fps, seconds by stage, and rates.
Rates are operations per second and, on a TPU, their share of the chip's peak (mfu).

Yields the progress while it runs. The video is then null, and the facts are job_id, phase, fraction (0 to 1), text, index, total,
seconds_left and ahead. `ahead` is the number of queued videos before this video. The last pair is the video and its facts. With
gradio_client, iterate over the job of `submit`; `predict` returns only the last pair. A POST to `run/generate` does so too.

`settings` has values by name. `again`, {"job": ..., "from_shot": 2}, regenerates a storyboard from this shot on. A shot may have
its own "drive", the path of an uploaded file. The other settings:
"""
_RUN = f"{API}/run/generate"  # Gradio returns only the first yielded value here, which must be the video
_UPLOAD_KINDS: dict[str, UploadKind] = {"picture": "image", "sound": "sound"}  # for all other media, "clip"


def describe_endpoint() -> str:
    """Return the description of the endpoint and of each setting, which Gradio publishes."""
    settings = {name: SETTINGS[name].description for name in sorted(FOR_PROGRAMS)}
    settings |= {name: f"{SETTINGS[name].description} Given as {words}." for name, (_, words) in FILES.items()}
    return "\n".join([_DESCRIPTION, *(f"- {name}: {text}" for name, text in settings.items())])


def add_api(context: StudioContext) -> None:
    # Gradio builds the API description from these annotations. It recognizes a JSON object only by a plain `dict`.
    async def generate(
        prompt: str,
        preset: str = "",
        image: dict | None = None,  # ty: ignore[missing-type-argument]
        settings: dict | None = None,  # ty: ignore[missing-type-argument]
        request: gr.Request = None,  # ty: ignore[invalid-parameter-default]  # Gradio always passes it
    ) -> AsyncIterator[tuple[dict[str, object] | None, dict[str, object]]]:
        assert request.request is not None, "Gradio always passes the caller's request"
        streams, view = not request.request.url.path.rstrip("/").endswith(_RUN), None
        try:
            settings, again = _split_again(settings)
            wanted = GenerateArguments.parse_arguments(prompt, preset, image, *split_files(settings))
            caller = context.identify_caller(request)
            default = "" if wanted.preset else await asyncio.to_thread(context.default_preset, caller, wanted.given)
            preset_named, values = await asyncio.to_thread(wanted.resolve_settings, default)
            job = await context.submit(await request_from_settings(context, caller, preset_named, values), caller, again)
            async with aclosing(follow_job(context.engine, job.id)) as views:
                shown = None
                async for view in views:
                    progress = {"job_id": job.id} | describe_progress(view)
                    if streams and view.is_active and progress != shown:
                        yield None, progress
                    shown = progress
            result = finished_video(view)
        except StudioError as error:
            raise gr.Error(shorten_paths(str(error)), print_exception=False) from None
        rates = {stage: dataclasses.asdict(rate) for stage, rate in result.rates.items()}
        address = video_url(job.id, request.request, context.access)
        # The video is marked as a stream. Otherwise Gradio copies the file and serves the copy to all visitors who are logged in.
        video = gr.FileData(path=address, url=address, mime_type="video/mp4", is_stream=True).model_dump()
        yield video, video_facts(job.id, result) | {"rates": rates}

    # Gradio expects the type of one yielded value as the return annotation.
    generate.__annotations__["return"] = tuple[dict, dict]  # ty: ignore[missing-type-argument]
    gr.api(generate, api_name="generate", api_description=describe_endpoint(), concurrency_limit=None)


def _split_again(settings: object) -> tuple[Any, tuple[str, int] | None]:
    """Return the settings without `again`, and its value as (job id, first shot), or None. Raises: RequestError."""
    if not isinstance(settings, dict) or settings.get("again") is None:
        return settings, None
    again = settings["again"]
    if not (isinstance(again, dict) and isinstance(again.get("job"), str) and isinstance(again.get("from_shot"), int)):
        raise RequestError(f"again={shorten(again)}", 'must be {"job": ..., "from_shot": N}', "correct it")
    return {name: value for name, value in settings.items() if name != "again"}, (again["job"], again["from_shot"])


def split_files(settings: object) -> tuple[object, dict[str, object] | None]:
    """Return the settings without files, and the files by the settings' names. If `settings` is no object, return it and None."""
    if not isinstance(settings, dict):
        return settings, None
    files = {name: value for name, value in settings.items() if name in FILES}
    return {name: value for name, value in settings.items() if name not in FILES}, files


@dataclass(frozen=True, kw_only=True)
class GenerateArguments:
    """The arguments of one call. Their types are checked, their values are not."""

    prompt: str
    preset: str
    image: dict[str, Any] | None
    settings: dict[str, Any]
    files: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse_arguments(
        cls, prompt: Any, preset: Any, image: Any, settings: Any, files: dict[str, Any] | None = None
    ) -> "GenerateArguments":
        """Check the types of untrusted arguments. None counts as missing. Raises: RequestError."""
        given = {"prompt": prompt, "preset": preset, "image": image, "settings": settings, **(files or {})}
        kinds: dict[str, tuple[type, str]] = {
            "prompt": (str, "a text"),
            "preset": (str, "a preset's name"),
            "image": (dict, "a file"),
        }
        kinds |= {"settings": (dict, "an object"), **FILES}
        for name, value in given.items():
            kind, words = kinds[name]
            if value is not None and not isinstance(value, kind):
                raise RequestError(f"{name}={shorten(value)}", f"must be {words}", f"correct {name}")
        return cls(prompt=prompt or "", preset=preset or "", image=image, settings=settings or {}, files=files or {})

    @property
    def given(self) -> dict[str, object]:
        return {**self.settings, **self.files, "image": self.image}

    def to_request(self, default_preset: str = "") -> GenerationRequest:
        """Return the request. Without a preset and a `default_preset`, it uses the first preset. Raises: RequestError."""
        preset, values = self.resolve_settings(default_preset)
        return GenerationRequest.from_preset(preset, **values)

    def resolve_settings(self, default_preset: str = "") -> tuple[Preset, dict[str, object]]:
        """Return the preset, and the settings by name. Raises: RequestError, and the errors of `check_upload_path`."""
        unknown = sorted(set(self.settings) - FOR_PROGRAMS)
        if unknown:
            rule = f"may have {', '.join(sorted(FOR_PROGRAMS))}"
            raise RequestError(f"settings has {unknown[0]!r} and", rule, "correct its name or leave it out")
        preset, paths = find_preset(self.preset or default_preset or list_presets()[0].name), dict[str, Any]()
        files: dict[str, Any] = {"image": self.image, **self.files}
        for name, value in files.items():
            if not value:
                continue
            if name in _LABELLED:
                (key, example), rows = _LABELLED[name], []
                for row in value:
                    if not isinstance(row, dict) or row.keys() != {key, "image"}:
                        raise RequestError(f"{name} has {shorten(row)}", f"and must have {example}", "correct it")
                    rows.append(row | {"image": str(uploaded_path(row["image"]))})
                paths[name] = tuple(rows)
            elif name == "references":
                paths[name] = tuple(str(uploaded_path(one)) for one in value)
            else:
                paths[name] = str(uploaded_path(value, _UPLOAD_KINDS.get(SETTINGS[name].media or "", "clip")))
        if frames := paths.get("keyframes"):
            paths["keyframe_at"] = tuple(row["frame"] for row in frames)
            paths["keyframes"] = tuple(row["image"] for row in frames)
        return preset, {"prompt": self.prompt, **paths, **self.settings}


def finished_video(view: StageView | None) -> VideoResult:
    """Return the video from the last `StageView` of a job. Raises: StudioError if the job did not finish."""
    if view is None or view.phase != "finished" or view.result is None:
        cause = view.cause if view and view.cause else "the video was stopped"
        raise StudioError(cause, fix=view.fix if view else "")
    return view.result


def describe_progress(view: StageView) -> dict[str, object]:
    """Return a job's progress as JSON values.

    `phase` is the present stage, such as `queued` or `denoising`, at last `finished`, `failed` or `cancelled`. `fraction` is the
    completed part, from 0 to 1, and never decreases. `text` is one line in English for people. `index` and `total` count steps,
    frames or bytes of the stage, 0 if unknown. `seconds_left` is an estimate, None if unknown. `ahead` counts the videos before
    it.
    """
    text = " · ".join(part for part in progress_texts(view, ENGLISH) if part)
    names = ("phase", "index", "total", "seconds_left", "ahead")
    return {name: getattr(view, name) for name in names} | {"fraction": round(view.fraction, 4), "text": text}


def video_facts(job_id: str, result: VideoResult) -> dict[str, object]:
    names, request = ("width", "height", "num_frames", "fps", "seconds"), result.request
    return {"job_id": job_id, "preset": request.preset, "seed": request.seed} | {name: getattr(result, name) for name in names}
