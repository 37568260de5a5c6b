"""Load settings into the form: from a job, a dropped video, a link, the last session, or a named preset.

Loading queues nothing. A message names every setting that cannot be loaded.
"""

import base64
import binascii
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr

from backend.engine.job import Job
from backend.errors import RequestError, StudioError
from backend.media.image_inputs import write_frame
from backend.media.sandbox import LONG_SECONDS, SandboxCall, Steps
from backend.media.video import read_stored_request
from backend.schemas.events import VIDEO_FILE
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import FIELDS, find_preset
from presets import Preset
from wan_ui.components.buttons import Act, text_button
from wan_ui.components.events import Updates
from wan_ui.components.toast import Message
from wan_ui.form.controls import control_values
from wan_ui.form.form import Form, omit_input_files
from wan_ui.form.picture import CENTRE
from wan_ui.form.unused_settings import FILES_OF_SHOTS, shown_by_form, unused_settings_text
from wan_ui.gateway.uploads import check_upload_path, copy_to_cache, temporary_image_path
from wan_ui.i18n.english import Texts
from wan_ui.services.caller import Caller
from wan_ui.services.presets import full_preset, preset_choices
from wan_ui.services.sandbox_calls import runs_sandbox_calls
from wan_ui.services.studio_context import StudioContext

_ONE_SHOT = {"video": None, "strength": None, "trim": None, "extend": None, "overlap": None, "keeps_pixels": True} | {
    one.name: one.default for one in FIELDS if one.subject == "story"
}


def parse_proposed_size(value: str) -> dict[str, int]:
    """Read width, height and number of frames of proposed settings, such as "832x480x81". Raises: RequestError."""
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})x(\d{1,5})", value)
    if match is None:
        raise RequestError(f"size={value[:40]!r}", "must be WIDTHxHEIGHTxFRAMES", "press one of the buttons")
    return dict(zip(("width", "height", "num_frames"), map(int, match.groups()), strict=True))


@dataclass(frozen=True, kw_only=True)
class LoadHandlers:
    context: StudioContext
    form: Form
    message: gr.HTML

    @property
    def outputs(self) -> list[gr.blocks.Block]:
        form, shots = self.form, self.form.prompt.shots
        follow = [form.tabs, shots.editor, shots.max_characters, form.sound.box]
        inputs = sorted(form.inputs, key=lambda component: component._id)
        return [*follow, *inputs, self.message, form.editing]

    @runs_sandbox_calls
    def act(self, request: gr.Request, event: gr.EventData) -> Steps[Updates]:
        act, caller = Act.from_event(event), self.context.identify_caller(request)
        texts = caller.texts
        if act.what == "prompt":
            return {self.form.prompt.prompt: act.value}
        if act.what == "new":
            message = Message(text=texts.loaded_new_seed)
            return {self.form.settings.is_seed_random: True, self.message: message.html(texts)}
        job = self.context.find_job(act.job, caller)
        if job is None:
            return {self.message: gr.skip()}
        try:
            match act.what:
                case "fits":
                    return self._load_proposal(job, act.value, texts)
                case "continue":
                    return (yield from self._continue_video(job, caller))
                case "full":
                    return self._load_full_quality(job, texts)
                case "edit":
                    if not job.request.is_from_pictures:  # the form has no field for a clip, *Save changes* would remove it
                        raise RequestError(
                            "a video that is made under Edit", "cannot be changed here", "queue another under Edit"
                        )
                    message = Message(text=texts.loaded_editing, view="create")
                    return self._load_job(job, texts, message) | {self.form.editing: job.id}
            return self._load_same(job, texts)
        except StudioError as error:
            return {self.message: Message.from_error(error).html(texts)}

    @runs_sandbox_calls
    def drop(self, request: gr.Request, event: gr.EventData) -> Steps[Updates]:
        """Handle a file that was dropped on the page. A video of the studio loads its settings; an image becomes the first
        frame."""
        caller = self.context.identify_caller(request)
        try:
            path = check_upload_path(Act.from_event(event).value)
            if path.suffix.lower() in (".mp4", ".m4v", ".mov"):
                return (yield from self._load_video_file(path, caller))
            if not preset_choices("i2v", self.context.can_run).available:
                raise RequestError("a picture", "needs a model that starts from one, and none is here", "download one")
            return {
                self.form.tabs: gr.update(selected="i2v"),
                self.form.task: "i2v",
                self.form.image.image: str(path),
                self.form.image.focus: CENTRE,
                self.message: Message(view="create").html(caller.texts),
            }
        except StudioError as error:
            return {self.message: Message.from_error(error).html(caller.texts)}

    def load_session(self, settings: dict[str, object] | None, texts: Texts) -> Updates:
        """Load the settings of the last session, if the browser has remembered valid settings."""
        try:
            given = dict(settings or {})
            is_seed_new = bool(given.pop("is_seed_new", True))
            request = GenerationRequest.from_stored(omit_input_files(given))
            self.check_available(request, texts)
            shown = self.form.show_settings(request, texts, self.context.can_run)
            return shown | self.form.show_prompt(request, is_seed_new=is_seed_new)
        except (StudioError, TypeError):
            return {self.message: gr.skip()}

    def show_request(
        self,
        request: GenerationRequest,
        texts: Texts,
        message: Message,
        is_seed_new: bool = False,
        *,
        missing: Collection[str] = (),
    ) -> Updates:
        """Load a request's settings and show `message`. The message also names the settings that the form does not show, and the
        input files that are `missing`.

        Raises: StudioError for a model that is not on this machine.
        """
        self.check_available(request, texts)
        lost = {texts.loaded_clip: not request.is_from_pictures, texts.loaded_cues: request.cues or request.action}
        unused = unused_settings_text(request, shown_by_form(request) - {*missing}, texts)
        sentences = (message.text, *(sentence for sentence, is_lost in lost.items() if is_lost), unused)
        message = replace(message, text=" ".join(filter(None, sentences)))
        shown = self.form.show_settings(request, texts, self.context.can_run)
        shown |= self.form.show_prompt(request, is_seed_new=is_seed_new)
        return shown | {self.message: message.html(texts), self.form.editing: None}

    def _load_same(self, job: Job, texts: Texts) -> Updates:
        again, text = text_button("fill:new", texts.loaded_seed_button), texts.loaded.format(seed=job.request.seed)
        return self._load_job(job, texts, Message(text=text, button=again, view="create"))

    def _load_job(self, job: Job, texts: Texts, message: Message, **changes: int) -> Updates:
        """Load a job's settings, with some changes, and with its images, audio and storyboard."""
        request = job.request.with_changes(**changes) if changes else job.request
        shown = self.show_request(request, texts, message) | self._load_input_files(request)
        return shown | self.form.prompt.shots.load_job(job, texts)

    def _load_proposal(self, job: Job, size: str, texts: Texts) -> Updates:
        """Load the job's settings with a proposed size and length, such as "832x480x81". Raises: RequestError."""
        return self._load_job(job, texts, Message(text=texts.loaded_fits, view="create"), **parse_proposed_size(size))

    def _load_full_quality(self, job: Job, texts: Texts) -> Updates:
        """Load the full preset for the job's draft preset, with the same prompt, images and seed."""
        preset = full_preset(job.request)
        if preset is None:
            return self._load_same(job, texts)
        pictures = [role for role in job.request.inputs() if role in self.form.image.by_setting]
        sound_names = ("sound", "sound_start") if "sound" in preset.inputs else ()
        same = {name: getattr(job.request, name) for name in ("prompt", "seed", "image_focus", *pictures, *sound_names)}
        shots = omit_input_files({"shots": job.request.shots}) if job.request.shots else {}
        request = GenerationRequest.from_preset(preset, **same, **shots)
        text, kept = texts.loaded_full.format(title=preset.words(texts.language).title), {*same, *shots}
        text = " ".join(filter(None, (text, unused_settings_text(job.request, kept, texts))))
        message = Message(text=text, view="create")
        return self.show_request(request, texts, message) | self._load_input_files(request)

    def _continue_video(self, job: Job, caller: Caller) -> Steps[Updates]:
        """Load settings of "Image to video" into the form, with the video's last frame as the first frame.

        If the job's preset does not support image to video, load the settings of the first available preset that does.
        """
        texts = caller.texts
        picture = yield from _extract_frame(job.folder / VIDEO_FILE, -1)
        preset = preset_choices("i2v", self.context.can_run).pick_preset(job.request.preset)
        if preset is None:
            raise RequestError("continuing", "needs a model that starts from a picture, and none is here", "download one")
        if job.request.preset == preset.name:
            base = job.request.with_changes(task="i2v", image=picture, last_image=None, image_focus=CENTRE, **_ONE_SHOT)
            kept = shown_by_form(base) - _ONE_SHOT.keys()
        else:
            base = GenerationRequest.from_preset(preset, prompt=job.request.prompt, image=picture)
            kept = frozenset({"prompt", "seed"})
        unused = unused_settings_text(job.request, kept, texts)
        message = Message(text=" ".join(filter(None, (texts.loaded_continue, unused))), view="create")
        return self.show_request(base, texts, message, is_seed_new=True) | {self.form.image.image: picture}

    def _load_video_file(self, path: Path, caller: Caller) -> Steps[Updates]:
        stored = yield SandboxCall(work=read_stored_request, arguments=(path,))
        request, texts = GenerationRequest.from_stored(stored), caller.texts
        again = text_button("fill:new", texts.loaded_seed_button) if request.task == "t2v" else ""
        text = texts.loaded.format(seed=request.seed)
        message = Message(text=text, button=again, view="create")
        if not request.inputs():
            return self.show_request(request, texts, message)
        shared = request.for_sharing()
        jobs = self.context.engine.jobs.list_jobs(caller.owner, seed=request.seed)
        original = next((job for job in jobs if job.request.for_sharing() == shared), None)  # the visitor's own job
        if original is not None:
            return self._load_job(original, texts, message)
        picture = None if request.task == "t2v" else (yield from _extract_frame(path, 0))
        missing = {texts.loaded_first_frame: picture, texts.loaded_own_sound: request.sound}
        text = " ".join((text, *(words for words, value in missing.items() if value)))
        filled: Updates = {self.form.image.image: picture, self.form.image.focus: CENTRE} if picture else {}
        if request.sound:
            filled |= self.form.sound.load_audio(request, None)
        lost = FILES_OF_SHOTS | {"last_image"}
        return self.show_request(request, texts, replace(message, text=text), missing=lost) | filled

    def check_available(self, request: GenerationRequest, texts: Texts) -> None:
        """Check that the preset's model is on this machine. Another model would generate a different video.

        Raises: StudioError.
        """
        if not self.context.can_run(request.resolved_preset):
            raise StudioError(texts.loaded_elsewhere.format(preset=request.preset).rstrip("."))

    def _load_input_files(self, request: GenerationRequest) -> Updates:
        """Load a job's images and audio. Copy them to Gradio's cache, so that the page can show them."""
        parts = self.form.image.by_setting
        copies = {role: copy_to_cache(paths[0]) for role, paths in request.inputs().items() if role in parts}
        pictures = {part: copies.get(role) for role, part in parts.items()} if copies else {}
        return pictures | self.form.sound.load_audio(request, copy_to_cache(request.sound) if request.sound else None)


def _extract_frame(video: Path, index: int) -> Steps[str]:
    """Write a frame of an untrusted video as an image in Gradio's cache. Raises: VideoFileError, Busy."""
    with temporary_image_path() as part:
        yield SandboxCall(work=write_frame, arguments=(video, index, part), seconds=LONG_SECONDS)
        return copy_to_cache(part)


def encode_settings(request: GenerationRequest) -> str:
    """Encode a request's settings, without files, for a link."""
    data = omit_input_files(request.for_sharing())
    return base64.urlsafe_b64encode(json.dumps(data, ensure_ascii=False).encode()).decode().rstrip("=")


def decode_settings(code: str) -> GenerationRequest:
    """Decode the request of a link. Raises: RequestError."""
    try:
        data = json.loads(base64.urlsafe_b64decode(code[:20_000] + "=" * (-len(code) % 4)))
        request = GenerationRequest.from_stored(omit_input_files(dict(data)))
        find_preset(request.preset)
        return request
    except (ValueError, TypeError, RecursionError, binascii.Error):
        raise RequestError("the link's settings", "must be whole", "copy the link again") from None


def link_values(code: str | None, presets: Sequence[Preset]) -> dict[str, Any] | None:
    """Return a link's model, prompt, number of frames and settings, for the script of a view with these presets.

    Return None without a link, for a broken link, and for a model that is not in `presets`.
    """
    try:
        request = decode_settings(code or "")
    except StudioError:
        return None
    if request.preset not in {preset.name for preset in presets}:
        return None
    settings = control_values(request) | {"seed": request.seed}
    return {"preset": request.preset, "prompt": request.prompt, "num_frames": request.num_frames, "settings": settings}
