"""The presets: each model's checkpoint, default settings and limits. This package has only data and the code that reads it."""

from presets.loader import ImageExample, LoraChoice, Preset, PresetWords, UnknownPreset, list_presets, list_variants, load_preset

__all__ = ["ImageExample", "LoraChoice", "Preset", "PresetWords", "UnknownPreset", "list_presets", "list_variants", "load_preset"]
