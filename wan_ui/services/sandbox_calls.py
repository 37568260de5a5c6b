"""For whom files are opened in the sandbox, and what becomes of it when the caller goes."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import gradio as gr
from starlette.requests import ClientDisconnect, Request

from backend.media.sandbox import Requester, Steps
from wan_ui.gateway.access import Access
from wan_ui.gateway.visitors import owner_name, sender_address
from wan_ui.services.caller import Caller

Result = TypeVar("Result")


def asker(request: Request, access: Access | None = None) -> Requester:
    """Who sends this request, by cookie and by address; `access` tells whether it is the operator."""
    is_operator = access is not None and access.is_operator(request.cookies)
    return Requester(owner=owner_name(dict(request.cookies)), address=sender_address(request.scope), has_budget=not is_operator)


def visitor(caller: Caller) -> Requester:
    """The same of a visit."""
    return Requester(owner=caller.owner, address=caller.room.address if caller.room else "", has_budget=not caller.is_operator)


def opens_files(handler: Callable[..., Steps[Result]]) -> Callable[..., Coroutine[Any, Any, Result]]:
    """Decorates a handler of a page, a method of something with a `context`, that yields each `SandboxCall` and is given what it
    returns: the handler waits for it in the event loop, without a thread."""

    @functools.wraps(handler)
    async def waiting(self: Any, *arguments: Any) -> Result:
        request = next(argument for argument in arguments if isinstance(argument, gr.Request))
        caller = await asyncio.to_thread(self.context.caller, request)
        return await self.context.engine.sandbox.run_steps_async(handler(self, *arguments), visitor(caller))

    return waiting


async def unless_gone(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """What the work returns. If the caller goes while it is done, it is cancelled. Raises: ClientDisconnect."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _gone(request: Request) -> None:
    """Returns when the caller has gone. The request's body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
