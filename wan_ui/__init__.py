"""The studio: the web page for the engine. Imports Gradio, but not jax, torch or diffusers."""
