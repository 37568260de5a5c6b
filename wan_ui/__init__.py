"""The studio: one page in front of the engine. Gradio only; imports neither jax, torch nor diffusers."""
