"""The library's menu of projects: create, rename, archive, export and import projects, and select one for new videos.

Element ids: `projects` (the menu), `project-name`, `project-file`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import gradio as gr

from backend.engine.job import Job
from backend.engine.projects import Project
from backend.errors import StudioError
from backend.media.sandbox import Steps
from wan_ui.components.buttons import Act, icon_button, text_button
from wan_ui.components.events import Updates, Values
from wan_ui.components.icons import icon
from wan_ui.components.toast import Message
from wan_ui.gateway.uploads import LARGEST_BODY, check_upload_path, temporary_upload_folder
from wan_ui.i18n.english import Texts
from wan_ui.services.caller import Caller
from wan_ui.services.projects import project_file_name, project_url
from wan_ui.services.sandbox_calls import runs_sandbox_calls
from wan_ui.services.studio_context import StudioContext

EVERYWHERE, NOWHERE = "all", "none"  # values of the filter: all videos, videos without a project


def project_filter(projects: Sequence[Project], texts: Texts) -> list[tuple[str, str]]:
    named = [
        (f"{project.name} ({texts.projects_archived})" if project.is_archived else project.name, project.id)
        for project in projects
    ]
    return [(texts.projects_all, EVERYWHERE), (texts.projects_none, NOWHERE), *named]


def projects_html(projects: Sequence[Project], current: str, texts: Texts) -> str:
    """Render the button and its menu. `current` is the id of the project for new videos."""
    named, rows = escape(texts.project_name), ""
    for project in projects:
        one, is_current = {"value": project.id}, project.id == current
        used = f"<span>{escape(project.name)}</span>"
        restored = icon_button("project:restore", "again", texts.project_restore, **one)
        if not project.is_archived:
            hint, title = texts.project_leave if is_current else texts.project_use, f"{project.name} · {project.videos}"
            used = text_button(f"project:{'leave' if is_current else 'use'}", title, hint=hint, **one)
            restored = icon_button("project:archive", "archive", texts.project_archive, **one)
        export = (
            f'<a class="quiet-button" href="{project_url(project)}" data-task download="{escape(project_file_name(project))}"'
            f' title="{escape(texts.project_export)}" aria-label="{escape(texts.project_export)}">{icon("download")}</a>'
            if project.videos
            else ""
        )
        rows += (
            f'<li data-current="{str(is_current).lower()}" data-archived="{str(project.is_archived).lower()}">'
            f"{used}{icon_button('project:rename', 'edit', texts.project_rename, **one)}{export}{restored}"
            f"{icon_button('project:delete', 'bin', texts.project_delete, **one)}</li>"
        )
    return (
        f'<details class="popover"><summary>{escape(texts.projects)}</summary><div><h2>{escape(texts.projects)}</h2>'
        f'<p class="hint">{escape(texts.projects_hint)}</p><ul>{rows}</ul>'
        f'<p class="row"><input id="project-name" maxlength="60" placeholder="{named}" aria-label="{named}">'
        f"{text_button('project:create', texts.project_create)}</p>"
        '<p class="row"><label class="button"><input type="file" id="project-file" accept=".zip,application/zip"'
        f' data-large="{escape(texts.project_large.format(megabytes=LARGEST_BODY // 1_000_000))}">'
        f"{escape(texts.project_import)}</label></p></div></details>"
    )


def project_and_tags_html(job: Job, projects: Sequence[Project], texts: Texts) -> str:
    """Render the fields for a video's project and tags. Only projects of the video's owner are offered."""
    fitting = [one for one in projects if one.owner == job.owner and (not one.is_archived or one.id == job.project)]
    options = "".join(
        f'<option value="{escape(value)}"{" selected" if value == job.project else ""}>{escape(name)}</option>'
        for value, name in [("", texts.projects_none), *((project.id, project.name) for project in fitting)]
    )
    one, tags, hint = f'data-job="{escape(job.id)}"', escape(" ".join(job.tags)), escape(texts.tags_hint)
    chosen = (
        f'<label><span>{escape(texts.project)}</span><select data-change="project:move" {one}>{options}</select></label>'
        if fitting
        else ""
    )
    return (
        f'<div class="place-of">{chosen}<label><span>{escape(texts.tags)}</span>'
        f'<input data-change="project:tag" {one} value="{tags}" placeholder="{hint}" title="{hint}" maxlength="500">'
        "</label></div>"
    )


@dataclass(frozen=True, kw_only=True)
class ProjectHandlers:
    """Handlers of the menu of projects, and of the project and tag fields in a video's details.

    `filter` is the library's filter by project. `goes` is the line above the Generate button with the project of new videos.
    """

    context: StudioContext
    menu: gr.HTML
    filter: gr.Dropdown
    goes: gr.HTML
    message: gr.HTML

    @property
    def outputs(self) -> list[gr.blocks.Block]:
        return [self.menu, self.filter, self.goes, self.message]

    def current_updates(self, caller: Caller) -> Updates:
        projects = self.context.engine.projects.list_for_owner(caller.scope, caller.owner)
        current, texts, goes = self.context.engine.projects.current(caller.owner), caller.texts, ""
        if name := next((project.name for project in projects if project.id == current), ""):
            leave = icon_button("project:leave", "cross", texts.project_leave)
            goes = f'<p class="goes-into"><span>{escape(texts.project_target.format(name=name))}</span>{leave}</p>'
        return {
            self.menu: projects_html(projects, current, texts),
            self.filter: gr.update(choices=project_filter(projects, texts)),
            self.goes: goes,
        }

    @runs_sandbox_calls
    def act(self, values: Values, request: gr.Request, event: gr.EventData) -> Steps[Updates]:
        """Handle a button of the menu, or a change of a video's project or tags."""
        caller, act = self.context.identify_caller(request), Act.from_event(event)
        try:
            if act.what == "import":
                archive = check_upload_path(act.value, "project")
                with temporary_upload_folder() as folder:
                    project, count = yield from self.context.import_project_steps(archive, folder, caller)
                archive.unlink(missing_ok=True)
                imported = caller.texts.project_imported_one if count == 1 else caller.texts.project_imported
                text = imported.format(name=project.name, count=count)
            else:
                text = self._run_action(act, caller)
        except StudioError as error:
            return {self.message: Message.from_error(error).html(caller.texts)} | self.current_updates(caller)
        message_updates = {self.message: Message(text=text).html(caller.texts)} if text else {}
        self.context.engine.count_change()
        return message_updates | self.current_updates(caller)

    def _run_action(self, act: Act, caller: Caller) -> str:
        """Run an action on projects and videos that the visitor may see. Return its message, "" for none. Raises: StudioError."""
        projects, job = self.context.engine.projects, self.context.find_job(act.job, caller)
        match act.what:
            case "create":
                project = projects.create(caller.owner, act.job)
                projects.set_current(caller.owner, project.id)
                return caller.texts.project_created.format(name=project.name)
            case "rename":
                projects.rename(act.value, caller.scope, act.job)
            case "archive" | "restore":
                projects.archive(act.value, caller.scope, act.what == "archive")
            case "delete":
                projects.delete(act.value, caller.scope)
            case "use" | "leave":
                projects.set_current(caller.owner, act.value if act.what == "use" else "")
            case "move" if job is not None:
                projects.assign_video(job.id, job.owner, act.value)
            case "tag" if job is not None:
                projects.set_tags(job.id, act.value)
        return ""
