"""How many suggestions are written at once, and what ends one."""

import asyncio
import sys
from types import SimpleNamespace

import pytest

from backend.errors import Busy
from backend.rewriting.asked import Asked, has_instructions
from backend.rewriting.program import Program
from presets import list_presets, load_preset
from wan_ui.door.limits import PROMPTS_WRITTEN
from wan_ui.form.rewrite_handlers import RewriteHandlers, _until


def visit(owner: str, address: str | None) -> SimpleNamespace:
    return SimpleNamespace(owner=owner, room=address and SimpleNamespace(address=address))


def test_a_visitor_an_address_and_all_together_have_their_limits():
    handlers = RewriteHandlers(desk=None, form=None)
    with handlers._room(visit("a", "1.1.1.1")):
        with pytest.raises(Busy), handlers._room(visit("a", "2.2.2.2")):
            pass
        with handlers._room(visit("b", "1.1.1.1")):
            with pytest.raises(Busy), handlers._room(visit("c", "1.1.1.1")):
                pass
            with handlers._room(visit("d", "3.3.3.3")), handlers._room(visit("operator", None)):
                assert handlers.busy["all"] == PROMPTS_WRITTEN.in_all
                with pytest.raises(Busy), handlers._room(visit("e", "4.4.4.4")):
                    pass
    assert not handlers.busy, "nobody is remembered who has none"


def test_an_end_stops_the_helper_at_once():
    helper = Program(command=(sys.executable, "-c", "import time; print('a', flush=True); time.sleep(600)"))
    asked = Asked(prompt="x", preset=load_preset("wan-tiny"), seconds=1.0)

    async def stopped() -> list[tuple[str, bool]]:
        ended, found = asyncio.Event(), []
        async for one in _until(ended, helper, asked):
            found.append(one)
            ended.set()
        return found

    assert asyncio.run(asyncio.wait_for(stopped(), 30)) == [("a", False)]


def test_every_preset_that_reads_a_prompt_has_instructions():
    assert [preset.name for preset in list_presets() if preset.reads_prompt and not has_instructions(preset)] == []
