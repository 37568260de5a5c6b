"""Write a checkpoint with random weights in diffusers' layout, and its preset."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from presets import Preset, load_preset
from tests.second_family.model import parameter_shapes
from tests.second_family.spec import PIPELINE, TRANSFORMER

CONFIG = {"_class_name": TRANSFORMER, "width": 16, "channels": 4, "layers": 2}
NAME = "dots-tiny"


def write_checkpoint(folder: Path) -> Path:
    generator = np.random.default_rng(0)
    for part, shapes in parameter_shapes(CONFIG).items():
        (folder / part).mkdir(parents=True)
        (folder / part / "config.json").write_text(json.dumps(CONFIG if part == "transformer" else {}))
        tensors = {name: generator.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
        save_file(tensors, folder / part / "model.safetensors")
    index = {"_class_name": PIPELINE} | {part: ["dots", part] for part in parameter_shapes(CONFIG)}
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


def preset_of(folder: Path) -> Preset:
    demo = load_preset("wan-tiny").model_dump()
    own = {
        "name": NAME,
        "title": "Dots",
        "series": "dots",
        "model": str(folder),
        "tasks": ["t2v", "i2v"],
        "image_examples": [],
        "steps": 3,
    }
    own |= {"width": 32, "height": 32, "num_frames": 9, "sizes": [[32, 32], [32, 48]], "frame_counts": [5, 9], "solver": "euler"}
    own |= {"size_multiple": 4, "vae_scale_spatial": 4, "vae_scale_temporal": 2, "frame_step": 2, "takes": {"references": "may"}}
    own |= {"min_width": 16, "min_height": 16, "min_frames": 3, "solvers": ["euler"]}
    own |= {"makes_sound": True, "zh": None, "trained_frames": None, "windows_above": None, "continues": False}
    own |= {"takes_quantize": False}
    return Preset(**demo | own)
