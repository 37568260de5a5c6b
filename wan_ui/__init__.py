"""The studio: one page in front of the engine. Imports Gradio, but not jax, torch or diffusers."""
