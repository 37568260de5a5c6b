"""What every handler needs: the engine, who is asking, and what they may do with it."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from backend.contract.request import GenerationRequest
from backend.engine.engine import Engine
from backend.engine.store import Job
from backend.errors import JobNotFound
from wan_ui.desk.access import Access
from wan_ui.desk.presets import CanRun
from wan_ui.desk.rewriter import PromptRewriter
from wan_ui.desk.visit import Visit, texts_for
from wan_ui.desk.visitors import owner_of

MOST_WAITING = 20  # videos that one visitor may have in line; the operator has no limit


@dataclass(frozen=True, kw_only=True)
class Desk:
    """One engine, and the rules for what each visitor sees of it."""

    engine: Engine
    access: Access
    can_run: CanRun
    most_waiting: int = MOST_WAITING
    rewriter: PromptRewriter | None = None

    def visit(self, request: gr.Request) -> Visit:
        """Who is asking."""
        cookies = dict(request.cookies)
        is_operator = self.access.is_operator(cookies)
        return Visit(
            owner=owner_of(cookies, request.session_hash),
            scope=self.access.scope(cookies, request.session_hash),
            is_operator=is_operator,
            texts=texts_for(request.headers),
            limit=None if is_operator else self.most_waiting,
        )

    def job(self, job_id: Any, visit: Visit) -> Job | None:
        """The job if it exists and the visitor may see it; `job_id` is what the page sent, unchecked."""
        try:
            job = self.engine.job(job_id) if isinstance(job_id, str) and job_id else None
        except JobNotFound:
            return None
        return job if job and visit.may_see(job.owner) else None

    def submit(self, wanted: GenerationRequest, visit: Visit) -> Job:
        """Queues it for the visitor, within their limits. Raises: StudioError."""
        return self.engine.submit(wanted, visit.owner, visit.limit, may_download=visit.is_operator)

    def revise(self, job: Job, wanted: GenerationRequest, visit: Visit) -> Job:
        """Replaces the request of a waiting job, within the visitor's limits. Raises: StudioError."""
        return self.engine.revise(job.id, wanted, may_download=visit.is_operator)
