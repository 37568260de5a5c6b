"""The presets: what each model is, its own settings and what may be asked of it. Data and its loader, nothing else."""

from presets.loader import ImageExample, LoraChoice, Preset, PresetWords, UnknownPreset, list_presets, load_preset

__all__ = ["ImageExample", "LoraChoice", "Preset", "PresetWords", "UnknownPreset", "list_presets", "load_preset"]
