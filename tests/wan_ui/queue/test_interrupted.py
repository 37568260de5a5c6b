"""Tests of how the page shows interrupted jobs, jobs that wait for a visitor, and a full disk."""

from dataclasses import replace

from backend.engine.disk import Shortage
from backend.schemas.events import Interrupted, Queued, Step
from backend.schemas.shape import Shape
from tests.wan_ui.builders import CHINESE, a_job
from wan_ui.components.progress import StageView, advance_view, progress_texts
from wan_ui.i18n.english import ENGLISH
from wan_ui.queue.html import Entry, Queue, queue_html
from wan_ui.stage.html import stage_html

STOP = Interrupted(cause="The worker was killed by SIGKILL, from outside", fix="Make it again", by="signal", place="step 4 of 20")


def view_after(*events) -> StageView:
    view = StageView()
    for event in events:
        view = advance_view(view, event)
    return view


def test_the_stage_says_why_and_where_and_that_it_continues():
    html = stage_html(view_after(Step(3, 20, 0.1, 2.0), STOP, Queued(0)), replace(a_job(), state="queued"), ENGLISH)
    assert "The worker was killed by SIGKILL" in html and "continues by itself" in html and "queue:go_on" not in html
    assert progress_texts(view_after(STOP), ENGLISH)[:2] == (
        "Interrupted",
        "Step 4 of 20 · The worker was killed by SIGKILL, from outside",
    )
    assert "第 4 / 20 步" in progress_texts(view_after(STOP), CHINESE)[1]


def test_a_step_ends_the_interruption():
    view = view_after(STOP, Queued(0), Step(4, 20, 0.1, 2.0))
    assert view.interrupted_at == view.cause == "" and view.phase == "denoising"


def test_a_held_job_has_a_button_on_the_stage_and_in_the_queue():
    job, view = replace(a_job(), state="queued"), replace(view_after(STOP), is_held=True)
    assert 'data-act="queue:go_on"' in stage_html(view, job, ENGLISH)
    entry = Entry(job=job, view=view, shape=Shape.from_request(job.request), is_warm=True)
    assert 'data-act="queue:go_on"' in queue_html(Queue(waiting=(entry,)), ENGLISH)
    assert "queue:go_on" not in queue_html(Queue(waiting=(replace(entry, view=view_after(STOP)),)), ENGLISH)


def test_a_full_disk_is_one_sentence_over_the_queue():
    html = queue_html(Queue(shortage=Shortage(free=1_200_000_000, needed=3_400_000_000)), ENGLISH)
    assert "The disk has 1.2 GB free, and the next video needs 3.4 GB. The queue continues when disk space is freed." in html
    assert "1.2 GB" in queue_html(Queue(shortage=Shortage(free=1_200_000_000, needed=3_400_000_000)), CHINESE)
