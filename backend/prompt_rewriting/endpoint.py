"""Rewrite prompts with a server that has OpenAI's chat completions API (`serve --rewriter-url URL`), such as vLLM, Ollama or
llama.cpp. The server's key, if needed, is in STUDIO_REWRITER_KEY. Only the operator sets the address. Answers are read as a
stream of at most MOST_BYTES. Redirects are not followed, so that the key is not sent elsewhere."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import httpx2

from backend.errors import StudioError, one_line
from backend.prompt_rewriting.helper import SECONDS_OF_SILENCE, Helper, rewrite_error
from backend.prompt_rewriting.request import RewriteRequest

CHAT = "/chat/completions"
MOST_BYTES = 1_000_000
KEY_REFUSED = (401, 403)
CANNOT_SEE = (400, 404, 415, 422, 500, 501)  # status codes of servers whose model does not accept images


@dataclass(kw_only=True)
class Endpoint(Helper):
    """A server with the API. `url` is the base address ("http://localhost:11434/v1") or the full address, which ends in `CHAT`.
    `model` is the model's name, or None for the server's first model."""

    url: str
    model: str | None = None
    key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Check the address. Raises: StudioError."""
        address = self.url.rstrip("/").removesuffix(CHAT)
        try:
            parsed = httpx2.URL(address)
            is_address = parsed.scheme in ("http", "https") and bool(parsed.host)
        except (httpx2.InvalidURL, ValueError):
            is_address = False
        if not is_address:
            fix = 'such as "http://localhost:11434/v1"'
            raise StudioError(f"--rewriter-url {self.url[:80]!r}", "must be an address that starts with http:// or https://", fix)
        self.url = address

    async def stream_answer(self, request: RewriteRequest) -> AsyncGenerator[str]:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        timeout = httpx2.Timeout(10.0, read=SECONDS_OF_SILENCE)
        try:
            async with httpx2.AsyncClient(headers=headers, timeout=timeout) as client:
                if self.model is None:
                    async with client.stream("GET", f"{self.url}/models") as response:
                        found = _parse_json(await _read_json_body(response))
                    models = found.get("data") if isinstance(found, dict) else None
                    name = models[0].get("id") if isinstance(models, list) and models and isinstance(models[0], dict) else None
                    if not isinstance(name, str):
                        raise rewrite_error("the endpoint names no model: give one with --rewriter-model")
                    self.model = name
                for sees in [True, False] if request.picture else [False]:
                    body = {"model": self.model, "messages": request.messages(sees=sees), "stream": True}
                    async with client.stream("POST", self.url + CHAT, json=body) as response:
                        if sees and response.status_code in CANNOT_SEE:
                            continue  # the model does not accept images: ask again without the image
                        async with aclosing(_answer_pieces(response)) as answer:
                            async for piece in answer:
                                yield piece
                        return
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise rewrite_error((str(error) or type(error).__name__)[:240]) from None


async def _answer_pieces(response: httpx2.Response) -> AsyncGenerator[str]:
    """Yield the pieces of an answer. An answer that is not streamed is one piece."""
    if response.status_code != httpx2.codes.OK or _content_type(response) != "text/event-stream":
        yield _choice_text(_parse_json(await _read_json_body(response)), "message")
        return
    async for line in _read_lines(response):
        if line.startswith("data:") and (data := line.removeprefix("data:").strip()) != "[DONE]":
            yield _choice_text(_parse_json(data), "delta")


async def _read_lines(response: httpx2.Response) -> AsyncIterator[str]:
    """Yield the lines of a stream. Raises: StudioError if the answer is too long."""
    rest, total = b"", 0
    async for data in response.aiter_bytes():
        total += len(data)
        if total > MOST_BYTES:
            raise rewrite_error(f"the endpoint's answer has more than {MOST_BYTES:,} bytes")
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace").strip()
    yield rest.decode("utf-8", "replace").strip()


async def _read_json_body(response: httpx2.Response) -> str:
    text = "\n".join([line async for line in _read_lines(response)])
    if response.status_code in KEY_REFUSED:
        # This error must not quote the body, because the body may contain the key, and visitors read the error.
        raise rewrite_error("the endpoint refuses the studio's key")
    if response.status_code != httpx2.codes.OK:
        raise rewrite_error(f"the endpoint answered {response.status_code}: {_error_reason(text)}")
    if _content_type(response) not in ("application/json", ""):
        raise rewrite_error(f"the endpoint answered with {_content_type(response)[:40]}, which is no chat completion")
    return text


def _error_reason(text: str) -> str:
    """Return the message in an error's body, or the start of the body."""
    try:
        error: Any = json.loads(text)
        while isinstance(error, dict):
            error = error.get("error") or error.get("message") or error.get("detail") or ""
    except ValueError:
        error = "" if text.lstrip().startswith("<") else text
    return one_line(str(error))[:160] or "without a reason"


def _content_type(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _parse_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise rewrite_error("the endpoint's answer is no JSON") from None


def _choice_text(answer: object, part: str) -> str:
    """Return the text of a completion or of a piece of a completion, "" without a text. Raises: StudioError for an error."""
    if isinstance(answer, Mapping) and answer.get("error"):
        raise rewrite_error(_error_reason(json.dumps(answer)))
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    first = choices[0] if isinstance(choices, list) and choices else {}
    message = first.get(part) if isinstance(first, Mapping) else None
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, str) else ""
