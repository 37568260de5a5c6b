"""Handlers of the edit view: render it, load an earlier video's clip and settings, and show a queued video on the stage.

`wan_ui.edit.routes` handles uploads and requests of the view's script.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from backend.engine.job import Job
from backend.errors import RequestError, StudioError
from backend.media.masks import is_single_image
from backend.media.sandbox import LONG_SECONDS, SandboxCall, Steps
from backend.schemas.clip import Part, make_trim
from backend.schemas.control import extend_directions
from backend.schemas.events import VIDEO_FILE
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import find_preset
from presets import Preset
from wan_ui.components.buttons import Act
from wan_ui.components.events import EACH, Updates, Values
from wan_ui.components.toast import Message
from wan_ui.edit.clip import read_clip_for_page
from wan_ui.edit.html import clip_presets, edit_html
from wan_ui.edit.modes import MODE_FIELDS, loaded_settings, request_mode, supported_modes
from wan_ui.form.controls import SETTINGS_WITH_CONTROL, control_values, shown_settings
from wan_ui.form.load_settings import link_values, parse_proposed_size
from wan_ui.form.unused_settings import unused_settings_text
from wan_ui.gateway.uploads import copy_to_cache, public_upload_path
from wan_ui.services.caller import Caller
from wan_ui.services.panel import Acts, Panel
from wan_ui.services.presets import full_preset
from wan_ui.services.sandbox_calls import runs_sandbox_calls
from wan_ui.services.studio_context import StudioContext
from wan_ui.services.upscaling import offers_for_any_clip
from wan_ui.stage.handlers import StageHandlers

_SAME_IN_FULL = frozenset({"negative_prompt", "width", "height", "num_frames"})
_CONTINUED = _SAME_IN_FULL | {"prompt", "seed"}


@dataclass(frozen=True, kw_only=True)
class EditHandlers(Panel):
    context: StudioContext
    panel: gr.HTML
    stage: StageHandlers
    message: gr.HTML

    @property
    def outputs(self) -> list[gr.blocks.Block]:
        return [self.panel, self.message]

    @property
    def acts(self) -> Acts:
        """Map the group `edit` to its handler.

        `edit:use` loads the clip and settings of a video. `edit:full` does the same with the full model of a draft. `edit:fits`
        loads proposed settings that fit into memory. `edit:clip` opens a video as the clip. `edit:continue` opens a video for
        Extend.
        """
        return {"edit": self.act}  # ty: ignore[invalid-explicit-return]  # ty 0.0.108 finds two equal types different

    def wire(self) -> None:
        shown = self.stage.panel.job_id
        self.stage.follow_after(self.panel.queued(self.show_queued_job, shown, shown, **EACH))

    def show_queued_job(self, shown: str | None, request: gr.Request, event: gr.EventData) -> Any:
        """Return the job that the view has queued, for the stage. Return no update while the stage shows an unfinished job."""
        caller = self.context.identify_caller(request)
        job, old = self.context.find_job(Act.from_event(event).job, caller), self.context.find_job(shown, caller)
        return job.id if job and (old is None or old.has_ended) else gr.skip()

    def initial_updates(self, caller: Caller, parameters: Mapping[str, str], values: Values) -> Updates:
        """Render the view for this visitor's language and presets, with the settings of a link."""
        is_first_page = caller.uses_english and self.context.preset_filter(caller) == self.context.preset_filter()
        fill = link_values(parameters.get("settings"), clip_presets(self.context.preset_filter(caller)))
        if fill is not None:
            fill |= {"way": supported_modes(find_preset(fill["preset"]))[0], "clip": None}
        return {} if is_first_page and fill is None else {self.panel: self._render(caller, fill)}

    @runs_sandbox_calls
    def act(self, values: Values, request: gr.Request, event: gr.EventData) -> Steps[Updates]:
        """Load the inputs and settings of an edited video, or open any video as the clip."""
        act, caller = Act.from_event(event), self.context.identify_caller(request)
        job = self.context.find_job(act.job, caller)
        clip_messages = {"clip": caller.texts.loaded_as_clip, "continue": caller.texts.loaded_extend}
        if job is None or (job.request.is_from_pictures and act.what not in clip_messages):
            return {self.message: gr.skip()}
        try:
            if act.what in clip_messages:
                is_continued = act.what == "continue"
                fill = yield from self._load_as_clip(job, self._choose_preset(job.request, caller), is_continued)
                shown = _CONTINUED | shown_settings(find_preset(fill["preset"]), MODE_FIELDS[fill["way"]])
                is_same = fill["preset"] == job.request.preset
                unused = unused_settings_text(job.request, shown if is_same else _CONTINUED, caller.texts) if is_continued else ""
                message = Message(text=" ".join(filter(None, (clip_messages[act.what], unused))), view="edit")
                return {self.panel: self._render(caller, fill), self.message: message.html(caller.texts)}
            fill = yield from self._load_settings(job)
            if act.what == "fits":
                fill = _with_proposed_size(fill, job.request, parse_proposed_size(act.value))
        except (StudioError, OSError) as error:
            what = "the video" if act.what in clip_messages else "an input file of this video"
            error = error if isinstance(error, StudioError) else StudioError(what, "is no longer there")
            return {self.message: Message.from_error(error).html(caller.texts)}
        full, loaded = full_preset(job.request) if act.what == "full" else None, loaded_settings(job.request)
        if full is not None:
            loaded -= SETTINGS_WITH_CONTROL - _SAME_IN_FULL
            same = {name: fill["settings"][name] for name in ("resolution", "negative_prompt", "seed")}
            fill |= {"preset": full.name, "settings": control_values(full) | same}
        unused = unused_settings_text(job.request, loaded, caller.texts)
        text = " ".join(filter(None, (caller.texts.loaded.format(seed=job.request.seed), unused)))
        message = Message(text=text, view="edit")
        return {self.panel: self._render(caller, fill), self.message: message.html(caller.texts)}

    def _choose_preset(self, request: GenerationRequest, caller: Caller) -> Preset:
        """Return the request's preset if it can edit clips, else the first preset that can. Raises: RequestError."""
        presets = {preset.name: preset for preset in clip_presets(self.context.preset_filter(caller))}
        if not presets:
            raise RequestError("editing", "needs a model that can edit clips, and no such model is installed", "download one")
        return presets.get(request.preset) or next(iter(presets.values()))

    def _load_settings(self, job: Job) -> Steps[dict[str, Any]]:
        """Return the settings for the view's script, with the inputs copied to Gradio's cache. Raises: StudioError, OSError."""
        request = job.request
        files = {role: [Path(copy_to_cache(path)) for path in paths] for role, paths in request.inputs().items()}
        original = next((files[role][0] for role in ("drive", "video", "control") if role in files), None)
        clip = None if original is None else (yield from _read_clip(original))
        # The page ignores a text that equals the previous text. `time` always differs, so the same settings can be loaded again.
        filled = page_settings(request, clip["seconds"] if clip else 0.0) | {"clip": clip, "time": time.monotonic()}
        if request.drive:
            filled["figure"] = _file_entry(files["image"][0])
            filled["besides"] = {role: _file_entry(files[role][0]) for role in ("face", "video", "mask") if role in files}
        if "keyframes" in request.resolved_preset.inputs:
            filled["references"] = [_file_entry(path) for path in files.get("references", ())]
            keyframes = zip(request.keyframe_at, files.get("keyframes", ()), strict=True)
            filled["keyframes"] = [_file_entry(path) | {"frame": frame} for frame, path in keyframes]
            filled["mask"] = None
            if files.get("mask"):
                is_one = yield SandboxCall(work=is_single_image, arguments=(files["mask"][0].resolve(),))
                filled["mask"] = _file_entry(files["mask"][0]) | {"is_picture": is_one}
        return filled

    def _load_as_clip(self, job: Job, preset: Preset, is_continued: bool = False) -> Steps[dict[str, Any]]:
        """Return the settings for the view's script, with the whole video of the job as the clip.

        Raises: StudioError, OSError.
        """
        request, clip = job.request, (yield from _read_clip(Path(copy_to_cache(job.folder / VIDEO_FILE))))
        keeps_settings = is_continued and preset.name == request.preset
        size = {"resolution": f"{request.width}x{request.height}", "negative_prompt": request.negative_prompt, "seed": None}
        settings = control_values(request if keeps_settings else preset) | size
        own = {"preset": preset.name, "prompt": request.prompt, "num_frames": request.num_frames, "settings": settings}
        way = "extend" if is_continued and extend_directions(preset) else supported_modes(preset)[0]
        whole = {"way": way, "clip": clip, "start": 0.0, "end": clip["seconds"], "time": time.monotonic()}
        return own | whole | ({"extend": "after"} if way == "extend" else {})

    def _render(self, caller: Caller, fill: Mapping[str, Any] | None = None) -> str:
        presets = clip_presets(self.context.preset_filter(caller))
        return edit_html(presets, caller.texts, fill, offers_for_any_clip(self.context.engine))


def _with_proposed_size(fill: Mapping[str, Any], request: GenerationRequest, size: Mapping[str, int]) -> dict[str, Any]:
    """Return the page's settings with the width, height and number of frames in `size`.

    The end of the selected part changes too, except in Extend, where the part can be shorter than the video.
    """
    settings = fill["settings"] | {"resolution": f"{size['width']}x{size['height']}"}
    end = {} if request.extend else {"end": make_trim(fill["start"], size["num_frames"], request.fps)[1]}
    return {**fill, "settings": settings, "num_frames": size["num_frames"], **end}


def _read_clip(clip: Path) -> Steps[dict[str, Any]]:
    facts = yield SandboxCall(work=read_clip_for_page, arguments=(clip.resolve(),), seconds=LONG_SECONDS)
    return facts | {"path": public_upload_path(clip)}


def _file_entry(path: Path) -> dict[str, Any]:
    return {"path": str(path), "name": path.name}


def page_settings(request: GenerationRequest, seconds: float = 0.0) -> dict[str, Any]:
    """Return the settings that the view's script shows, without files. `seconds` is the length of the clip."""
    shown = ("control_kind", "control_scale", "control_downscale", "margins", "extend", "overlap", "keeps_pixels")
    own = ("drive_prompt",) if request.drive else () if request.strength is not None else shown
    names = ("preset", "prompt", "num_frames", "strength", *own)
    fields = {name: value for name in names if (value := getattr(request, name)) is not None}
    settings = control_values(request) | {"seed": request.seed}
    start, end = request.trim or Part.from_request(request).resolve_start(seconds).trim
    return fields | {"settings": settings, "way": request_mode(request), "start": start, "end": end}
