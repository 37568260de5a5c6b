"""Prompt rewriting by a language model, in the style that the video model prefers. Light: models run in separate processes."""
