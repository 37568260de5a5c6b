"""A batch: many videos from a table of prompts and settings. A preview shows the videos and their time. All are queued, or none.

Element ids: `batch` (the part of the form), `batch-table`, `batch-preview`, `batch-plan`, `batch-file`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import gradio as gr

from backend.engine.estimate import Estimate
from backend.errors import StudioError
from backend.media.sandbox import Steps
from backend.schemas.batch_table import LONGEST_TABLE, build_requests, read_table
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import FIELDS
from wan_ui.components.buttons import Act, text_button
from wan_ui.components.events import EACH, RAW, Listener, Updates, Values
from wan_ui.components.field_errors import error_sentence, note_html
from wan_ui.components.progress import format_duration
from wan_ui.components.toast import Message
from wan_ui.form.form import Batch, Form
from wan_ui.form.unused_settings import setting_text
from wan_ui.i18n.english import Texts
from wan_ui.services.sandbox_calls import runs_sandbox_calls
from wan_ui.services.studio_context import StudioContext

MOST_SHOWN = 20  # rows in the preview


def build_batch(texts: Texts, labels: Texts) -> Batch:
    """Build the form's part for a batch. It is hidden until the visitor presses Batch."""
    with gr.Column(elem_id="batch"):
        table = gr.Textbox(
            label=labels.batch_table,
            placeholder="prompt,seed,steps\na red circle,1,20\na blue star,2,20",
            info=labels.batch_hint,
            lines=5,
            max_lines=12,
            max_length=LONGEST_TABLE,
            elem_id="batch-table",
        )
        preview = gr.Button(labels.batch_preview, size="sm", elem_id="batch-preview")
        plan = gr.HTML(csv_button_html(texts), elem_id="batch-plan", apply_default_css=False)
    return Batch(table=table, preview=preview, plan=plan)


def csv_button_html(texts: Texts) -> str:
    return (
        '<p class="batch-file"><label class="button"><input type="file" id="batch-file" accept=".csv,.tsv,.txt,text/csv">'
        f"<span>{escape(texts.batch_file)}</span></label></p>"
    )


def batch_plan_html(
    requests: Sequence[GenerationRequest], estimates: Sequence[Estimate | None], base: GenerationRequest, texts: Texts
) -> str:
    """Render the list of videos, their total time, and the button that queues them."""
    rows = ""
    for number, (request, estimate) in enumerate(zip(requests[:MOST_SHOWN], estimates[:MOST_SHOWN], strict=True), 1):
        changed = [one.name for one in FIELDS if one.value_in(request) != one.value_in(base)]
        names = [name for name in changed if name not in ("prompt", "negative_prompt")][:6]
        changes = texts.list_separator.join(setting_text(name, request, texts) for name in names)
        cells = (str(number), request.prompt, changes, format_duration(estimate.seconds) if estimate else "")
        rows += f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
    more = len(requests) - MOST_SHOWN
    rest = f'<p class="hint">{escape(texts.batch_more.format(count=more))}</p>' if more > 0 else ""
    known = [estimate.seconds for estimate in estimates if estimate]
    is_one = len(requests) == 1
    if len(known) == len(requests):
        cost = texts.batch_cost_one if is_one else texts.batch_cost
    else:
        cost = texts.batch_cost_unknown_one if is_one else texts.batch_cost_unknown
    words = cost.format(count=len(requests), seconds=format_duration(sum(known)))
    label = (texts.batch_queue_one if is_one else texts.batch_queue).format(count=len(requests))
    queue = text_button("batch:queue", label, name="play")
    return (
        f'<div class="batch-plan"><table><tbody>{rows}</tbody></table>{rest}<p class="cost">{escape(words)}</p>'
        f'<div class="actions">{queue}</div></div>'
    )


@dataclass(frozen=True, kw_only=True)
class BatchHandlers:
    context: StudioContext
    form: Form
    message: gr.HTML

    def wire(self, act: Listener) -> None:
        """Connect the preview button, and the event of the other buttons, to their handlers."""
        batch = self.form.batch
        inputs = {*self.form.inputs, batch.table}
        batch.preview.click(self.preview, inputs, batch.plan, **RAW)
        act(self.act, inputs, [batch.table, batch.plan, self.message], **EACH)

    def preview(self, values: Values, request: gr.Request) -> str:
        """Render the list of videos, or the error in the table."""
        caller = self.context.identify_caller(request)
        try:
            base, wanted = self._read_requests(values)
        except StudioError as error:
            return note_html(error_sentence(error)) + csv_button_html(caller.texts)
        estimates = [self.context.engine.estimates.estimate(one) for one in wanted]
        return batch_plan_html(wanted, estimates, base, caller.texts) + csv_button_html(caller.texts)

    @runs_sandbox_calls
    def act(self, values: Values, request: gr.Request, event: gr.EventData) -> Steps[Updates]:
        """Put a file's text into the table, or queue the videos of the table."""
        caller, act, batch = self.context.identify_caller(request), Act.from_event(event), self.form.batch
        if act.what == "file":
            return {batch.table: act.value[:LONGEST_TABLE], batch.plan: csv_button_html(caller.texts)}
        try:
            _, wanted = self._read_requests(values)
            jobs = yield from self.context.submit_all_steps(wanted, caller)
        except StudioError as error:
            return {self.message: Message.from_error(error).html(caller.texts)}
        text = caller.texts.batch_queued_one if len(jobs) == 1 else caller.texts.batch_queued
        message = Message(text=text.format(count=len(jobs)))
        return {batch.table: "", batch.plan: csv_button_html(caller.texts), self.message: message.html(caller.texts)}

    def _read_requests(self, values: Values) -> tuple[GenerationRequest, list[GenerationRequest]]:
        prompt, settings = self.form.prompt.prompt, self.form.settings
        rows = read_table(str(values[self.form.batch.table] or ""))
        base = self.form.read(values | {prompt: values[prompt] or rows[0].get("prompt", "?")}).to_request()
        return base, build_requests(rows, base, is_seed_new=bool(values[settings.is_seed_random]))
