"""Prompt rewriting by a language model, in the style that the video model prefers. Models run in separate processes, so this
package does not import their libraries."""
