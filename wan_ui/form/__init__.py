"""The form: prompt, picture, settings and the visitor's own presets."""
