"""Queue, library, compare, presets and the rest in a real Chromium, against the pretend pipeline only: it is fast and can be slow."""

import json
import re
import shutil
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from backend.video_file import read_facts
from tests.wan_ui.conftest import _serving, _studio
from wan_ui.access import Access

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("panels")


@pytest.fixture(scope="module")
def studio(data_dir):
    with _serving("fake", data_dir) as server:
        yield _studio("fake", server)


def generate(page, prompt: str, steps: int = 2) -> None:
    page.locator("#prompt textarea").fill(prompt)
    page.locator("#steps input[type=number]").fill(str(steps))
    page.locator("#steps input[type=number]").blur()
    page.locator("#generate").click()


def made(page, prompt: str, steps: int = 2) -> str:
    """Makes a video and gives its job's id."""
    generate(page, prompt, steps)
    page.wait_for_function(
        """prompt => document.querySelector('.stage').dataset.phase === 'finished'
           && document.querySelector('.stage .detail[title]').title === prompt""", arg=prompt)  # fmt: skip
    return page.locator(".stage").get_attribute("data-job")


def waiting(page) -> list[str]:
    return page.locator('.queue li[data-state="queued"] b').all_inner_texts()


def press(page, prompt: str, act: str) -> None:
    """Presses a button of the queue's item with this prompt."""
    item = page.locator(".queue li", has_text=prompt).first
    item.hover()
    item.locator(f'[data-act="{act}"]').click()


def until(page, expression: str, arg=None) -> None:
    page.wait_for_function(expression, arg=arg)


def ready(page) -> None:
    until(page, "document.querySelector('.status')?.dataset.state === 'ready'")
    until(page, "typeof window.studioAct === 'function'")


def again(page):
    """Closes the tab and opens another in the same browser."""
    address, context = page.url, page.context
    page.close()
    page = context.new_page()
    page.goto(address)
    ready(page)
    return page


def lists(page, *prompts: str) -> None:
    """Waits until the queue's waiting items are these, in this order."""
    until(page, """prompts => JSON.stringify([...document.querySelectorAll('.queue li[data-state="queued"] b')]
          .map(item => item.innerText)) === JSON.stringify(prompts)""", list(prompts))  # fmt: skip


def test_the_queue_can_be_put_in_order_changed_and_thinned_out(visit):
    page = visit()
    generate(page, "a slow red square", 12)
    page.locator('.stage[data-phase="denoising"]').wait_for()
    for prompt in ("one", "two", "three"):
        generate(page, prompt)
        page.locator(".queue li", has_text=prompt).wait_for()
    lists(page, "one", "two", "three")
    assert page.locator(".stage").get_attribute("data-phase") == "denoising", "what runs stays on the stage"
    assert re.search(r"96 × 96 · 17 frames\s+compiled", page.locator(".queue .group").inner_text())
    press(page, "three", "queue:up")
    lists(page, "one", "three", "two")
    page.locator(".queue li", has_text="two").drag_to(page.locator(".queue li", has_text="one"))
    lists(page, "two", "one", "three")
    press(page, "one", "queue:cancel")
    lists(page, "two", "three")
    press(page, "three", "again:same")
    lists(page, "two", "three", "three")
    press(page, "two", "fill:edit")
    until(page, "document.querySelector('#prompt textarea')?.value === 'two'")
    page.locator("#leave").wait_for()
    page.locator("#prompt textarea").fill("two, changed")
    page.locator("#generate").click()
    lists(page, "two, changed", "three", "three")
    page.locator("#leave").wait_for(state="hidden")
    page.locator("#stop").click()
    until(page, "document.querySelector('.queue').dataset.count === '0'")
    ended = page.locator('.queue li[data-state="finished"] b').all_inner_texts()
    assert ended[:3] == ["three", "three", "two, changed"]


def test_a_closed_tab_loses_nothing_and_another_tab_shows_the_same(visit, studio):
    page = visit()
    generate(page, "a slow one", 40)
    page.locator('.stage[data-phase="denoising"]').wait_for()
    generate(page, "the one after")
    page.locator('.queue li[data-state="queued"]').wait_for()
    page.close()
    back, other = page.context.new_page(), page.context.new_page()
    for tab in (back, other):
        tab.goto(studio.url)
        tab.locator('.queue li[data-state="running"]', has_text="a slow one").wait_for()
        tab.locator('.stage[data-phase="denoising"]').wait_for()
    back.locator("#stop").click()
    for tab in (back, other):
        until(tab, "document.querySelector('.queue').dataset.count === '0'")
        tab.locator('.queue li[data-state="finished"]', has_text="the one after").wait_for()
        tab.locator('.stage[data-phase="cancelled"]').wait_for()


def test_a_restarted_server_goes_on_with_the_queue(chromium, tmp_path):
    with _serving("fake", tmp_path) as server:
        page = chromium.new_context().new_page()
        page.goto(server.url)
        until(page, "document.querySelector('.status')?.dataset.state === 'ready'")
        generate(page, "a slow red square", 30)
        page.locator('.stage[data-phase="denoising"]').wait_for()
        for prompt in ("left one", "left two"):
            generate(page, prompt)
            page.locator(".queue li", has_text=prompt).wait_for()
        server._process.kill()
        server._process.wait()
    again = _serving("fake", tmp_path, port=server.port)
    with again:
        page.goto(again.url)
        until(page, "document.querySelectorAll('.queue li[data-state=\"finished\"]').length === 2")
        failed = page.locator('.queue li[data-state="failed"]')
        assert "a slow red square" in failed.inner_text()
        failed.hover()
        failed.locator('[data-act="again:same"]').click()
        page.locator('.stage[data-phase="denoising"]').wait_for()
        page.context.close()


def test_the_library_finds_plays_stars_and_gives_back(visit):
    page = visit()
    made(page, "a purple elephant")
    made(page, "a yellow submarine")
    page.keyboard.press("Alt+3")
    cards = page.locator("#library-grid li")
    until(page, "document.querySelectorAll('#library-grid li').length === 2")
    cards.nth(0).hover()
    until(page, "document.querySelector('#library-grid li video').currentTime > 0")
    page.locator("#library-search input, #library-search textarea").fill("ELEPHANT purple")
    until(page, "document.querySelectorAll('#library-grid li').length === 1")
    cards.first.hover()
    cards.first.locator('[data-act="queue:star"]').click()
    page.locator('#library-grid li[data-starred="true"]').wait_for()
    page.locator("#library-search input, #library-search textarea").fill("")
    until(page, "document.querySelectorAll('#library-grid li').length === 2")
    page.locator("#library-starred input").check()
    until(page, "document.querySelectorAll('#library-grid li').length === 1")
    page.locator("#library-starred input").uncheck()
    until(page, "document.querySelectorAll('#library-grid li').length === 2")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.locator("#library-detail .prompt", has_text="a purple elephant").wait_for()
    detail = page.locator("#library-detail").inner_text()
    assert re.search(r"num_frames\s+17", detail) and re.search(r"fake\s+1", detail)
    page.keyboard.press("Delete")
    until(page, "document.querySelectorAll('#library-grid li').length === 1")
    page.locator("#message [data-act]", has_text="Undo").click()
    until(page, "document.querySelectorAll('#library-grid li').length === 2")
    cards.nth(0).focus()
    page.keyboard.press("Delete")
    until(page, "document.querySelectorAll('#library-grid li').length === 1")
    page.locator("#library-bin input").check()
    page.locator('#library-grid [data-act="queue:restore"]').first.wait_for(state="attached")
    cards.first.hover()
    page.locator('#library-grid [data-act="queue:restore"]').click()
    page.locator("#library-bin input").uncheck()
    until(page, "document.querySelectorAll('#library-grid li').length === 2")


def drop(page, path: Path) -> None:
    """Drops a file from the desktop onto the middle of the page."""
    import base64

    page.evaluate("""([name, data]) => {
      const bytes = Uint8Array.from(atob(data), letter => letter.charCodeAt(0)), transfer = new DataTransfer();
      const kind = name.endsWith('.mp4') ? 'video/mp4' : name.endsWith('.png') ? 'image/png' : 'text/plain';
      transfer.items.add(new File([bytes], name, {type: kind}));
      const target = document.querySelector('#stage');
      for (const kind of ['dragover', 'drop'])
        target.dispatchEvent(new DragEvent(kind, {dataTransfer: transfer, bubbles: true, cancelable: true}));
    }""", [path.name, base64.b64encode(path.read_bytes()).decode()])  # fmt: skip


def test_a_dropped_video_loads_its_settings(visit, tmp_path):
    page, other = visit(), visit()
    page.locator("#resolution input").click()
    page.get_by_role("option", name="128 × 96").click()
    made(page, "a striped zebra", 3)
    seed = page.locator("#seed input").input_value()
    with page.expect_download() as download:
        page.locator("#download").click()
    shutil.copy(download.value.path(), tmp_path / "mine.mp4")
    drop(other, tmp_path / "mine.mp4")
    until(other, "document.querySelector('#prompt textarea')?.value === 'a striped zebra'")
    assert other.locator("#seed input").input_value() == seed and not other.locator("#seed-random input").is_checked()
    assert other.locator("#steps input[type=number]").input_value() == "3"
    assert "128" in other.locator("#resolution input").input_value()
    other.locator("#message [data-act]", has_text="New seed instead").click()
    until(other, "document.querySelector('#seed-random input').checked")
    (tmp_path / "notes.mp4").write_text("no video")
    drop(other, tmp_path / "notes.mp4")
    other.locator('#message .message.shown[data-bad="true"]').wait_for()
    assert "must be an mp4 video" in other.locator("#message").inner_text()


def test_a_dropped_picture_becomes_the_first_frame(visit, picture):
    page = visit()
    drop(page, picture)
    page.locator("#crop-preview img").wait_for()
    assert page.get_by_role("tab", name="Image to video").get_attribute("aria-selected") == "true"
    before = page.locator("#crop-preview img").get_attribute("src")
    page.locator("#pad").click()
    until(page, "before => document.querySelector('#crop-preview img').src !== before", before)


def test_four_are_compared_together(visit, studio, tmp_path):
    page, stranger = visit(), visit()
    page.locator("#prompt textarea").fill("a square to compare")
    page.keyboard.press("Alt+2")
    page.locator("#compare-values input, #compare-values textarea").fill("1, 2, 3, 4")
    page.locator("#compare-start").click()
    page.locator('.compare[data-count="4"]').wait_for()
    page.locator('.compare[data-done="4"]').wait_for()
    times = "[...document.querySelectorAll('.compare video')].map(video => video.currentTime)"
    until(page, f"(() => {{ const t = {times}; return t.every(time => time > 0.1) && Math.max(...t) - Math.min(...t) < 0.15 }})()")
    page.locator("[data-compare=play]").click()
    page.locator("[data-compare=scrub]").fill("500")
    until(page, f"(() => {{ const t = {times}; return t.every(time => Math.abs(time - t[0]) < 0.07) && t[0] > 0.4 }})()")
    assert re.search(r"seed\s+1\s+2\s+3\s+4", page.locator(".differences").inner_text())
    page.locator("[data-compare=wipe]").check()
    page.locator('.compare[data-wipe="true"] figure[data-side="right"]').wait_for()
    assert page.locator(".compare figure:visible").count() == 2
    with page.expect_download() as download:
        page.locator("#compare-export").click()
    shutil.copy(download.value.path(), tmp_path / "tiled.mp4")
    facts = read_facts(tmp_path / "tiled.mp4")
    assert facts.width >= 2 * 96 and facts.height >= 2 * 96
    page.locator('[data-act="compare:link"]').click()
    until(page, "document.querySelector('#message input')?.value.includes('?compare=')")
    link = page.locator("#message input").input_value()
    own = page.context.new_page()
    own.goto(link)
    own.locator('.compare[data-done="4"]').wait_for()
    stranger.goto(link)
    until(stranger, "document.querySelector('#compare-values input, #compare-values textarea')?.value === '1, 2, 3, 4'")
    assert stranger.locator(".compare video").count() == 0
    assert stranger.locator("#prompt textarea").input_value() == "a square to compare"
    export = f"{studio.url}studio/compare/{link.partition('compare=')[2]}.mp4"
    assert stranger.request.get(export).status == 404 and page.request.get(export).status == 200


def test_library_videos_are_compared_too(visit):
    page = visit()
    made(page, "first of two")
    made(page, "second of two", 3)
    page.keyboard.press("Alt+3")
    until(page, "document.querySelectorAll('#library-grid li').length === 2")
    for number in range(2):
        page.locator("#library-grid li").nth(number).focus()
        page.keyboard.press("c")
        if number == 0:
            until(page, "document.querySelector('#message').innerText.includes('chosen')")
    page.locator('.compare[data-done="2"]').wait_for()
    assert "steps" in page.locator(".differences").inner_text()


def test_presets_of_ones_own(visit, tmp_path):
    page = visit()
    page.locator("#steps input[type=number]").fill("7")
    page.locator("#steps input[type=number]").blur()
    page.locator("#own-menu summary").click()
    page.locator("#own-name").fill("My look")
    page.locator('[data-act="own:save"]').click()
    page.locator('[data-act="own:load"]', has_text="My look").wait_for()
    with page.expect_download() as download:
        page.locator("#own-menu a[download]").click()
    kept = tmp_path / "presets.json"
    shutil.copy(download.value.path(), kept)
    assert json.loads(kept.read_text())["presets"]["My look"]["steps"] == 7
    page = again(page)
    page.locator("#steps input[type=number]").fill("20")
    page.locator("#steps input[type=number]").blur()
    page.locator("#own-menu summary").click()
    page.locator('[data-act="own:load"]', has_text="My look").click()
    until(page, "document.querySelector('#steps input[type=number]').value === '7'")
    page.locator("#own-menu summary").click()
    page.locator("#own-name").fill("Better")
    page.locator('[data-act="own:rename"]').click()
    page.locator('[data-act="own:load"]', has_text="Better").wait_for()
    page.locator('[data-act="own:delete"]').click()
    page.locator('[data-act="own:load"]').wait_for(state="detached")
    page.locator("#own-file").set_input_files(kept)
    page.locator('[data-act="own:load"]', has_text="My look").wait_for()
    (tmp_path / "bad.json").write_text('{"presets": {"x": {"preset": "wan-tiny", "image": "/etc/passwd"}}}')
    page.locator("#own-file").set_input_files(tmp_path / "bad.json")
    page.locator('#message .message.shown[data-bad="true"]').wait_for()


def test_a_link_opens_the_studio_with_its_settings(visit):
    page, other = visit(), visit()
    page.locator("#prompt textarea").fill("a shared idea")
    page.locator("#steps input[type=number]").fill("9")
    page.locator("#steps input[type=number]").blur()
    page.locator("#own-menu summary").click()
    page.locator('[data-act="own:link"]').click()
    until(page, "document.querySelector('#message input')?.value.includes('?settings=')")
    other.goto(page.locator("#message input").input_value())
    until(other, "document.querySelector('#prompt textarea')?.value === 'a shared idea'")
    assert other.locator("#steps input[type=number]").input_value() == "9"


def test_the_last_sessions_settings_come_back(visit):
    page = visit()
    made(page, "a remembered prompt", 5)
    page = again(page)
    until(page, "document.querySelector('#prompt textarea')?.value === 'a remembered prompt'")
    assert page.locator("#steps input[type=number]").input_value() == "5"
    assert page.locator("#seed-random input").is_checked()
    page.locator("#history summary").click()
    assert "a remembered prompt" in page.locator("#history").inner_text()


def test_a_video_goes_on_from_its_last_frame(visit):
    page = visit()
    made(page, "a long walk")
    page.locator('.stage [data-act="fill:continue"]').click()
    page.locator("#crop-preview img").wait_for()
    assert page.get_by_role("tab", name="Image to video").get_attribute("aria-selected") == "true"
    made(page, "and it goes on")


def test_same_again_keeps_the_seed_and_a_new_seed_does_not(visit):
    page = visit()
    first = made(page, "twice")
    seed = re.search(r"Seed\s+(\d+)", page.locator(".stage .facts").inner_text())[1]
    for act, is_same in (("again:same", True), ("again:seed", False)):
        page.locator(f'.stage [data-act="{act}"]').click()
        until(page, "first => document.querySelector('.stage').dataset.job !== first", first)
        page.locator('.stage[data-phase="finished"]').wait_for()
        first = page.locator(".stage").get_attribute("data-job")
        assert (re.search(r"Seed\s+(\d+)", page.locator(".stage .facts").inner_text())[1] == seed) is is_same


def test_frames_can_be_stepped_through(visit):
    page = visit()
    made(page, "step by step")
    until(page, "document.querySelector('.stage video').readyState >= 2")
    page.locator('[data-player="scrub"]').fill("3")
    until(page, "document.querySelector('.player output').textContent === '4 / 17'")
    page.keyboard.press(".")
    until(page, "document.querySelector('.player output').textContent === '5 / 17'")
    page.keyboard.press(",")
    page.keyboard.press(",")
    until(page, "document.querySelector('.player output').textContent === '3 / 17'")


def test_visitors_are_apart_and_the_operator_sees_all(visit, studio, data_dir):
    one, two = visit(), visit()
    job = made(one, "a secret of one")
    for tab in (one, two):
        tab.keyboard.press("Alt+3")
    one.locator("#library-grid li", has_text="a secret of one").wait_for()
    assert "a secret of one" not in two.content()
    address = f"{studio.url}studio/media/{job}/video.mp4"
    assert one.request.get(address).status == 200 and two.request.get(address).status == 404
    assert two.request.get(address.replace("video.mp4", "poster.webp")).status == 404
    two.goto(f"{studio.url}?operator=wrong")
    assert two.request.get(address).status == 404
    two.goto(Access.of(data_dir).link(studio.url))
    assert "operator=" not in two.url
    ready(two)
    assert two.request.get(address).status == 200
    two.keyboard.press("Alt+3")
    two.locator("#library-grid li", has_text="a secret of one").click()
    two.locator("#library-detail").get_by_role("button", name="Open folder").click()
    two.get_by_text(re.compile(re.escape(str(data_dir / "runs" / job)))).wait_for()  # opened, or where it is
    one.locator("#library-grid li", has_text="a secret of one").click()
    one.locator("#library-detail").get_by_role("button", name="Use settings").wait_for()
    assert one.get_by_role("button", name="Open folder").count() == 0
    one.evaluate("job => studioAct('queue', {what: 'folder', job})", job)
    one.wait_for_timeout(500)
    assert str(data_dir) not in one.content()
    two.keyboard.press("Alt+4")
    two.locator("#system", has_text="You are the operator").wait_for()
    one.keyboard.press("Alt+4")
    one.locator("#system", has_text="You see your own").wait_for()


def test_the_system_panel_tells_of_the_machine(visit):
    page = visit()
    page.keyboard.press("Alt+4")
    page.locator(".system").wait_for()
    told = page.locator(".system").inner_text()
    assert "Square:0" in told and re.search(r"gradio\s+6", told) and re.search(r"Free on the disk\s+[\d.]+ GB", told)
    report = page.locator("[data-copy-text]").get_attribute("data-copy-text")
    assert "Square:0" in report and str(Path(__file__).parents[2]) not in report


def test_watchers_are_answered(studio):
    with urllib.request.urlopen(f"{studio.url}healthz") as answer:
        assert json.load(answer)["worker"] in ("ready", "busy", "warming", "loading", "starting")
    with urllib.request.urlopen(f"{studio.url}metrics") as answer:
        assert re.search(r'^studio_jobs\{state="finished"\} \d+$', answer.read().decode(), re.MULTILINE)


def test_failures_name_no_folder(visit, data_dir):
    page = visit()
    generate(page, "die")
    page.locator('.stage[data-phase="failed"]').wait_for()
    assert str(data_dir) not in page.content() and "worker" in page.locator(".stage .veil").inner_text()


def test_keys_are_explained_and_views_have_theirs(visit):
    page = visit()
    page.keyboard.press("?")
    page.locator("#help[open]").wait_for()
    assert "Generate" in page.locator("#help").inner_text()
    page.keyboard.press("Escape")
    page.locator("#help[open]").wait_for(state="detached")
    page.keyboard.press("Alt+q")
    page.locator("#queue").wait_for(state="hidden")
    page.keyboard.press("Alt+q")
    page.locator("#queue").wait_for(state="visible")
    page.locator("#prompt textarea").fill("what? 1, 2.")
    page.locator("#prompt textarea").press("?")
    assert page.locator("#help[open]").count() == 0


@pytest.mark.parametrize("view", ["create", "compare", "library", "system"])
def test_every_view_fits_a_phone(visit, view):
    page = visit(width=390, height=844)
    page.locator(f'#views [data-view="{view}"]').click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("#queue-toggle").click()
    page.locator("#queue").wait_for(state="visible")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("#queue").bounding_box()["width"] > 300


def test_a_chinese_browser_reads_chinese(chromium, studio):
    context = chromium.new_context(locale="zh-CN", viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.goto(studio.url)
    page.locator("#views", has_text="资料库").wait_for()
    assert page.locator("#generate").inner_text().strip() == "生成"
    page.locator(".stage .title", has_text="还没有视频").wait_for()
    until(page, "document.querySelector('#length input').value.includes('帧')")
    page.locator("#queue", has_text="队列").wait_for()
    page.locator("#generate").click()
    until(page, "document.querySelector('#prompt-note .note') && !document.querySelector('#prompt-note .note').hidden")
    context.close()


def test_a_visitor_who_waits_too_much_is_told(visit):
    page = visit()
    generate(page, "a slow red square", 20)
    page.locator('.stage[data-phase="denoising"]').wait_for()
    job = page.locator(".stage").get_attribute("data-job")
    for number in range(21):
        page.evaluate("job => window.studioAct('again', {what: 'same', job})", job)
        if number < 20:
            until(page, "number => document.querySelector('.queue').dataset.count === String(number + 2)", number)
    page.locator('#message .message.shown[data-bad="true"]').wait_for()
    assert "may have 20" in page.locator("#message").inner_text()
    page.evaluate("""() => {
      for (const item of document.querySelectorAll('.queue li[data-state="queued"]'))
        window.studioAct('queue', {what: 'cancel', job: item.dataset.job});
    }""")
    page.locator("#stop").click()
    until(page, "document.querySelector('.queue').dataset.count === '0'")


def test_metrics_ask_for_the_key_where_visitors_need_a_password(tmp_path):
    from starlette.applications import Starlette
    from starlette.testclient import TestClient

    from backend.engine import Engine
    from wan_ui.metrics import metrics_route

    engine = Engine(tmp_path, pipeline="tests.fake_pipeline", start_worker=False)
    access = Access("key")
    client = TestClient(Starlette(routes=[metrics_route(engine, access, is_open=False)]))
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers={"authorization": "Bearer key"}).status_code == 200
    engine.close()


def test_a_foreign_address_is_refused(studio):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{studio.url}studio/compare/../../etc/passwd.mp4")


def test_a_suggestion_shows_what_it_changes_and_waits(visit):
    page = visit()
    page.locator("#prompt textarea").fill("a cat <b>asleep</b>")
    page.locator("#rewrite").click()
    page.locator(".suggestion ins", has_text="striped").wait_for()
    assert page.locator(".suggestion b").count() == 0
    assert page.locator("#prompt textarea").input_value() == "a cat <b>asleep</b>"
    page.locator(".suggestion [data-act]").click()
    until(page, "document.querySelector('#prompt textarea').value === 'a striped cat <b>asleep</b>'")
