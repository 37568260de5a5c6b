"""The form: prompt, image, settings and the visitor's named presets."""
