"""Tests of upscaling from the stage and the library: the original stays, the upscaled video plays, and Stop ends the job."""

import pytest

from tests.wan_ui.steps import made, wait_until

pytestmark = pytest.mark.browser
WIDTH = "document.querySelector('.stage video').videoWidth === {}"


def test_the_menu_makes_a_larger_video_and_keeps_the_first(visit):
    page = visit()
    first = made(page, "a square that grows")
    wait_until(page, WIDTH.format(96))
    menu = page.locator(".stage .menu.upscale")
    assert not menu.locator("button").first.is_visible()
    menu.locator("summary").click()
    menu.locator("button", has_text="4× animevideov3 · 384 × 384").click()
    wait_until(page, WIDTH.format(384))
    assert "4× by animevideov3, from 96 × 96" in page.locator(".stage .facts").inner_text()
    page.locator('.stage [data-act="fill:use"]').click()  # the loaded settings generate the same video, upscaled
    page.locator("#more > button").click()
    wait_until(page, "document.querySelector('#upscale input[type=number]')?.value === '4'")
    page.keyboard.press("Alt+5")
    wait_until(page, "document.querySelectorAll('#library-grid li').length === 2")
    page.locator(f'#library-grid li[data-job="{first}"]').click()
    page.locator("#library-detail .menu.upscale summary").click()
    page.locator("#library-detail .menu.upscale button", has_text="2× animevideov3 · 192 × 192 · About").click()
    wait_until(page, WIDTH.format(192))


def test_a_stop_ends_it_and_the_first_video_stays(visit, close_gate):
    page = visit()
    close_gate("a square that is held", "frame 2")
    first = made(page, "a square that is held", steps=1)
    page.locator(".stage .menu.upscale summary").click()
    page.locator(".stage .menu.upscale button").first.click()
    page.locator(".stage .detail", has_text="of 17").wait_for()
    assert page.locator(".stage .headline").inner_text() == "Upscaling"
    page.locator("#stop").click()
    wait_until(page, "document.querySelector('.stage').dataset.phase === 'cancelled'")
    page.locator(f'.queue li [data-job="{first}"]').first.wait_for(state="attached")
