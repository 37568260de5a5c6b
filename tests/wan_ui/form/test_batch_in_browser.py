"""Tests of a batch in a real Chromium: its preview, and that all or none of its videos are queued."""

import json

import pytest

from tests.wan_ui.steps import wait_until
from tests.wan_ui.visitor import Visitor

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def studio(own_studio):
    return own_studio


def test_a_table_is_looked_at_then_queued_whole(visit, tmp_path):
    page = visit()
    page.locator("#prompt textarea").fill("from the form")
    page.locator(".batch-toggle").click()
    table = page.locator("#batch-table textarea")
    table.fill("prompt,seed,steps\na <b>red</b> square,1,3\na blue square,2,many")
    page.locator("#batch-preview").click()
    page.locator("#batch-plan .note", has_text="Row 2: steps='many' must be a number").wait_for()
    file = tmp_path / "table.csv"
    file.write_text("prompt,seed,steps\na <b>red</b> square,1,3\na blue square,2,\n", "utf-8")
    page.set_input_files("#batch-file", file)
    wait_until(page, "document.querySelector('#batch-table textarea').value.includes('blue square,2,')")
    page.locator("#batch-preview").click()
    page.locator(".batch-plan .cost", has_text="2 videos").wait_for()
    assert page.locator(".batch-plan td b").count() == 0 and "steps 3" in page.locator(".batch-plan tr").first.inner_text()
    page.locator('[data-act="batch:queue"]').click()
    page.locator("#message .message.shown", has_text="Queued 2 videos.").wait_for()
    page.locator(".queue li[data-state=finished]", has_text="a <b>red</b> square").wait_for()
    page.locator(".queue li[data-state=finished]", has_text="a blue square").wait_for()
    assert table.input_value() == ""
    table.fill("\n".join(f"one of too many, {number}" for number in range(30)))
    page.locator("#batch-preview").click()
    page.locator(".batch-plan .hint", has_text="and 10 more").wait_for()
    page.locator('[data-act="batch:queue"]').click()
    page.locator("#message .message.shown[data-bad=true]").wait_for()
    wait_until(page, "document.querySelector('.queue').dataset.count === '0'")
    assert page.locator(".queue li", has_text="one of too many").count() == 0, "none was begun and stopped"


def test_a_strangers_table_names_no_file_and_no_other_model(studio):
    """A table sent without the page may contain settings only, and each row passes the same checks as the form."""
    stranger = Visitor(studio.url)
    look = next(one for one in stranger.config["dependencies"] if _target(stranger, one) == "batch-preview")["api_name"]

    def said(table: str) -> str:
        return json.dumps(stranger.call(look, {"prompt": "x", "batch-table": table}), ensure_ascii=False)

    for column, table in ("image", "prompt,image\na,/etc/passwd"), ("model", "prompt,seed,model\na,1,/etc"):
        assert f"column &#x27;{column}&#x27; must be one of" in said(table)
    assert "batch:queue" not in said("prompt,loras\na,/etc/passwd") and "/etc" not in said("prompt,steps,loras\na,2,/etc/passwd")
    assert "batch:queue" not in said("prompt,num_frames\na,100000") and "batch:queue" in said("a <script>")
    assert "<script>" not in said("a <script>")


def _target(visitor: Visitor, dependency: dict) -> str | None:
    names = {one["id"]: one["props"].get("elem_id") for one in visitor.config["components"]}
    return names.get(dependency["targets"][0][0]) if dependency["targets"] else None
