"""What every handler needs: the engine, who is asking, what they may see, and in which language."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from backend.contract.request import GenerationRequest
from backend.engine.engine import Engine
from backend.engine.store import Job
from backend.errors import JobNotFound
from wan_ui.desk.access import Access
from wan_ui.desk.presets import CanRun
from wan_ui.desk.rewriter import PromptRewriter
from wan_ui.desk.visitors import owner_of
from wan_ui.system.folder_sizes import FolderSizes
from wan_ui.words.english import ENGLISH, Texts
from wan_ui.words.languages import LANGUAGES

MOST_WAITING = 20  # videos that one visitor may have in line; the operator has no limit


@dataclass(frozen=True, kw_only=True)
class Desk:
    """One engine and the rules of who sees what of it."""

    engine: Engine
    access: Access
    can_run: CanRun
    most_waiting: int = MOST_WAITING
    rewriter: PromptRewriter | None = None
    sizes: FolderSizes = field(default_factory=FolderSizes)

    def owner(self, request: gr.Request) -> str:
        """The visitor's name in the store."""
        return owner_of(dict(request.cookies), request.session_hash)

    def is_operator(self, request: gr.Request) -> bool:
        """Whether the operator is asking."""
        return self.access.is_operator(dict(request.cookies))

    def scope(self, request: gr.Request) -> str | None:
        """Whose jobs are shown: the visitor's own, or None, everybody's, for the operator."""
        return None if self.is_operator(request) else self.owner(request)

    def job(self, job_id: Any, request: gr.Request) -> Job | None:
        """The job if there is one and the visitor may see it, whatever the page says."""
        try:
            job = self.engine.job(job_id) if isinstance(job_id, str) and job_id else None
        except JobNotFound:
            return None
        return job if job and self.scope(request) in (None, job.owner) else None

    def limit(self, request: gr.Request) -> int | None:
        """How many videos the visitor may have in line; None: as many as they like."""
        return None if self.is_operator(request) else self.most_waiting

    def submit(self, wanted: GenerationRequest, request: gr.Request) -> Job:
        """Queues it for the visitor, within their limits. Raises: StudioError."""
        is_operator = self.is_operator(request)
        return self.engine.submit(wanted, self.owner(request), self.limit(request), may_download=is_operator)

    def revise(self, job: Job, wanted: GenerationRequest, request: gr.Request) -> Job:
        """Puts it in the place of a waiting job's request, within the visitor's limits. Raises: StudioError."""
        return self.engine.revise(job.id, wanted, may_download=self.is_operator(request))

    def texts(self, request: gr.Request) -> Texts:
        """The words in the first language of the visitor's browser that there is."""
        return texts_for(request.headers)


def texts_for(headers: Mapping[str, str]) -> Texts:
    """The words for an Accept-Language header, by the order in which it names languages."""
    for tag in re.findall(r"[A-Za-z]{2,3}(?=[-;,]|$)", headers.get("accept-language", "")):
        if tag.lower() in LANGUAGES:
            return LANGUAGES[tag.lower()]
    return ENGLISH
