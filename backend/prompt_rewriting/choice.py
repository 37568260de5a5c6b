"""Create the helper that the operator chose. A helper is a program or model that rewrites prompts."""

import argparse

from backend.errors import RequestError
from backend.prompt_rewriting.endpoint import Endpoint
from backend.prompt_rewriting.helper import Helper
from backend.prompt_rewriting.local_model import LocalModel
from backend.prompt_rewriting.program import Program
from backend.settings import rewriter_key


def helper_from_arguments(arguments: argparse.Namespace) -> Helper | None:
    """Return the helper that the options of `serve` select. Raises: StudioError for an invalid address or command, RequestError
    if the options select two helpers."""
    command, url, model = (str(getattr(arguments, name) or "").strip() for name in ("rewriter", "rewriter_url", "rewriter_model"))
    if command and (url or model):
        raise RequestError("--rewriter was given", "together with another helper for prompts", "give only one")
    if command:
        return Program.from_command_line(command)
    if url:
        return Endpoint(url=url, model=model or None, key=rewriter_key())
    return LocalModel(model) if model else None
