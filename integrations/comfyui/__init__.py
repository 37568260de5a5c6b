"""Nodes that generate videos on a studio server."""

from .nodes import comfy_entrypoint

__all__ = ["comfy_entrypoint"]
