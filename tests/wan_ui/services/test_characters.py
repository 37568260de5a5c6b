"""Tests that many requests of one visitor for the known characters cost one or two lookups and occupy one thread."""

import asyncio
import threading
from types import SimpleNamespace

import httpx
from starlette.applications import Starlette

from wan_ui.services.characters import PATH, characters_route

REQUESTS = 40


def test_forty_requests_of_one_visitor_share_two_lookups(tmp_path):
    image = tmp_path / "figure-anna.png"
    image.write_bytes(b"never read")
    gate, lookups, waiting = threading.Event(), [], []

    def look_up(owner: str, project: str, most: int) -> dict[str, str]:
        lookups.append(owner)
        assert gate.wait(30)
        return {"Anna": str(image)}

    def identify(request: object) -> SimpleNamespace:
        waiting.append(request)
        if len(waiting) == REQUESTS:
            gate.set()
        return SimpleNamespace(owner="ann")

    projects, library = SimpleNamespace(current=lambda owner: ""), SimpleNamespace(characters=look_up)
    context = SimpleNamespace(identify_caller=identify, engine=SimpleNamespace(projects=projects, library=library))

    async def ask_together() -> list[httpx.Response]:
        transport = httpx.ASGITransport(Starlette(routes=[characters_route(context)]))
        async with httpx.AsyncClient(transport=transport, base_url="http://studio") as client:
            return await asyncio.gather(*(client.get(PATH) for _ in range(REQUESTS)))

    answers = asyncio.run(ask_together())
    assert [[one["name"] for one in answer.json()["figures"]] for answer in answers] == [["Anna"]] * REQUESTS
    assert 1 <= len(lookups) <= 2
