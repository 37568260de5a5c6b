"""Tests of the limits of suggestions, and of what ends a suggestion."""

import asyncio
import sys
import threading
from contextlib import ExitStack
from difflib import SequenceMatcher
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from backend.errors import Busy
from backend.prompt_rewriting.program import Program
from backend.prompt_rewriting.request import RewriteRequest, has_instructions
from presets import list_presets, load_preset
from wan_ui.form import rewrite_handlers
from wan_ui.form.rewrite import MOST_COMPARED_WORDS, suggestion_html
from wan_ui.form.rewrite_handlers import RewriteHandlers, _stream_until_ended
from wan_ui.gateway.limits import PROMPTS_HOURLY, PROMPTS_WRITTEN
from wan_ui.i18n.english import ENGLISH


def caller(owner: str, address: str | None) -> SimpleNamespace:
    return SimpleNamespace(owner=owner, queue_limits=address and SimpleNamespace(address=address))


def test_a_visitor_an_address_and_all_together_have_their_limits():
    handlers = RewriteHandlers(context=None, form=None)
    with handlers._reserve_place(caller("a", "1.1.1.1")):
        with pytest.raises(Busy), handlers._reserve_place(caller("a", "2.2.2.2")):
            pass
        with handlers._reserve_place(caller("b", "1.1.1.1")):
            with pytest.raises(Busy), handlers._reserve_place(caller("c", "1.1.1.1")):
                pass
            with handlers._reserve_place(caller("d", "3.3.3.3")), handlers._reserve_place(caller("operator", None)):
                assert handlers.busy["all"] == PROMPTS_WRITTEN.in_all
                with pytest.raises(Busy), handlers._reserve_place(caller("e", "4.4.4.4")):
                    pass
    assert not handlers.busy, "nobody is remembered who has none"


def test_visitors_behind_this_machines_own_address_do_not_share_places():
    """All visitors who use a share link have this address."""
    handlers = RewriteHandlers(context=None, form=None)
    with ExitStack() as rooms:
        for number in range(PROMPTS_WRITTEN.in_all):
            rooms.enter_context(
                handlers._reserve_place(SimpleNamespace(owner=f"visitor-{number}", queue_limits=SimpleNamespace(address="")))
            )


def test_a_visitor_has_so_many_suggestions_an_hour():
    handlers = RewriteHandlers(context=None, form=None)
    for _ in range(PROMPTS_HOURLY.of_visitor):
        with handlers._reserve_place(caller("a", "1.1.1.1")):
            pass
    with pytest.raises(Busy, match="60 suggestions an hour"), handlers._reserve_place(caller("a", "1.1.1.1")):
        pass
    with handlers._reserve_place(caller("b", "1.1.1.1")), handlers._reserve_place(caller("operator", None)):
        pass


def test_words_that_repeat_do_not_take_the_processor():
    """The matcher alone takes cubic time for repeated words: 58 s for these texts."""
    counted = []

    def compare(**given):
        counted.append((len(given["a"]), len(given["b"])))
        return SequenceMatcher(**given)

    with patch("wan_ui.form.rewrite.SequenceMatcher", compare):
        html = suggestion_html("a " * 4000, "a c " * 300, ENGLISH)
    assert all(max(sizes) <= MOST_COMPARED_WORDS for sizes in counted)
    assert "<del>" in html and "<ins>" in html


@pytest.mark.parametrize(
    ("old", "new", "marked"),
    [
        ("a red circle", "a blue circle", "a <del>red</del> <ins>blue</ins> circle"),
        ("a circle", "a circle that moves", "a circle <ins>that moves</ins>"),
        ("x " * 400 + "red", "x " * 400 + "blue", "<del>red</del> <ins>blue</ins>"),
    ],
)
def test_changed_words_are_marked(old, new, marked):
    assert marked in suggestion_html(old, new, ENGLISH)


def test_the_comparison_runs_outside_the_event_loop(monkeypatch):
    threads = []
    monkeypatch.setattr(rewrite_handlers, "suggestion_html", lambda *given: threads.append(threading.current_thread()) or "done")
    helper = Program(command=(sys.executable, "-c", "print('a blue circle')"))
    asked = RewriteRequest(prompt="a red circle", preset=load_preset("wan-tiny"), seconds=1.0)

    async def suggest() -> list[str]:
        return [drawn async for drawn in rewrite_handlers._stream_html(asyncio.Event(), helper, asked, ENGLISH)]

    assert asyncio.run(suggest())[-1] == "done" and threads[0] is not threading.main_thread()


def test_an_end_stops_the_helper_at_once():
    helper = Program(command=(sys.executable, "-c", "import time; print('a', flush=True); time.sleep(600)"))
    asked = RewriteRequest(prompt="x", preset=load_preset("wan-tiny"), seconds=1.0)

    async def stopped() -> list[tuple[str, bool]]:
        ended, found = asyncio.Event(), []
        async for one in _stream_until_ended(ended, helper, asked):
            found.append(one)
            ended.set()
        return found

    assert asyncio.run(asyncio.wait_for(stopped(), 30)) == [("a", False)]


def test_every_preset_that_reads_a_prompt_has_instructions():
    assert [preset.name for preset in list_presets() if preset.reads_prompt and not has_instructions(preset)] == []
