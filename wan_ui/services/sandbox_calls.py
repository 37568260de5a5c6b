"""Helpers for sandbox calls: find the requester whose limits apply, and cancel calls when the requester disconnects."""

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


def requester_from_request(request: Request, access: Access | None = None) -> Requester:
    """Return the requester of a request, identified by cookie and network address.

    If `access` is given, the processor time of the operator's calls is unlimited.
    """
    is_operator = access is not None and access.is_operator(request.cookies)
    return Requester(owner=owner_name(dict(request.cookies)), address=sender_address(request.scope), has_budget=not is_operator)


def requester_from_caller(caller: Caller) -> Requester:
    return Requester(
        owner=caller.owner, address=caller.queue_limits.address if caller.queue_limits else "", has_budget=not caller.is_operator
    )


def runs_sandbox_calls(handler: Callable[..., Steps[Result]]) -> Callable[..., Coroutine[object, object, Result]]:
    """Decorate a handler of the page that yields `SandboxCall`s and receives their results.

    The handler must be a method of an object with the attribute `context`. It waits for each result in the event loop,
    without a thread.
    """

    @functools.wraps(handler)
    async def waiting(self: Any, *arguments: Any) -> Result:
        request = next(argument for argument in arguments if isinstance(argument, gr.Request))
        caller = await asyncio.to_thread(self.context.identify_caller, request)
        return await self.context.engine.sandbox.run_steps_async(handler(self, *arguments), requester_from_caller(caller))

    return waiting


async def cancel_on_disconnect(request: Request, work: Coroutine[object, object, Result]) -> Result:
    """Return the result of `work`. Cancel it if the caller disconnects. Raises: ClientDisconnect."""
    task, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        disconnect.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _wait_for_disconnect(request: Request) -> None:
    """Return when the caller has disconnected. The request's body must have been read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
