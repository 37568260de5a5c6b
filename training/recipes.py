"""The demo models by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler

from training.chat_text import ChatText, make_chat_tokenizer
from training.checkpoint import assemble_wan
from training.hunyuan_checkpoint import assemble_hunyuan
from training.hunyuan_networks import HunyuanNetworks
from training.hunyuan_vae import HUNYUAN_AUTOENCODER
from training.latents import Bucket
from training.ltx_checkpoint import DEMO_MU, assemble_ltx, make_ltx_scheduler
from training.ltx_networks import LtxNetworks, create_ltx
from training.ltx_text import GemmaText, make_ltx_tokenizer
from training.ltx_vae import LTX_AUTOENCODER
from training.recipe import Recipe, StageSeconds
from training.sound_networks import SoundTraining, train_sound
from training.tokenizer import make_tokenizer
from training.train_vae import VaeTraining
from training.wan_networks import WanNetworks, WanText
from training.wan_vae import WAN_AUTOENCODER


def _unipc(steps: int, flow_shift: float) -> UniPCMultistepScheduler:
    scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=flow_shift)
    scheduler.set_timesteps(steps)
    return scheduler


def _euler(steps: int, flow_shift: float) -> FlowMatchEulerDiscreteScheduler:
    """The steps of diffusers' HunyuanVideo 1.5 pipelines."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=flow_shift)
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 0.0, steps + 1)[:-1])
    return scheduler


def _ltx(steps: int, flow_shift: float) -> FlowMatchEulerDiscreteScheduler:
    """The steps of diffusers' LTX-2 pipelines for the demo's few tokens."""
    del flow_shift  # the authors' shift depends on the number of tokens
    scheduler = make_ltx_scheduler()
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=DEMO_MU)
    return scheduler


WAN_TINY = Recipe(
    pipeline="WanPipeline",
    has_speed=False,
    is_compiled=False,  # as in the training of the included checkpoint
    seconds=StageSeconds(vae=780, text=90, transformer=1140, refine=200),
    buckets=(
        Bucket(width=96, height=96, num_frames=17, share=0.82, batch=64, clips=3072),
        Bucket(width=128, height=96, num_frames=17, share=0.06, batch=32, clips=384),
        Bucket(width=96, height=128, num_frames=17, share=0.06, batch=32, clips=384),
        Bucket(width=96, height=96, num_frames=33, share=0.06, batch=32, clips=384),
    ),
    text_learning_rate=2e-3,
    autoencoder=WAN_AUTOENCODER,
    vae_training=VaeTraining(),
    make_tokenizer=make_tokenizer,
    create_text=WanText.create,
    create=lambda text, tokenizer, device: WanNetworks.create(WanText.load(text, tokenizer, device), device),
    load=WanNetworks.load,
    schedule=_unipc,
    assemble=assemble_wan,
)

HUNYUAN_TINY = Recipe(
    pipeline="HunyuanVideo15ImageToVideoPipeline",
    has_speed=True,
    is_compiled=True,  # two thirds of an uncompiled step are element-wise operations, measured
    seconds=StageSeconds(vae=1650, text=150, transformer=2640, refine=300),  # plus some minutes for encoding the caches
    buckets=(  # four times Wan's tokens per clip, because patches are single latents
        Bucket(width=96, height=96, num_frames=17, share=0.82, batch=32, clips=1024),
        Bucket(width=128, height=96, num_frames=17, share=0.06, batch=16, clips=128),
        Bucket(width=96, height=128, num_frames=17, share=0.06, batch=16, clips=128),
        Bucket(width=96, height=96, num_frames=33, share=0.06, batch=16, clips=128),
    ),
    text_learning_rate=5e-3,  # after 100 steps of 32 sentences 97 to 100 % were right, with 2e-3 25 to 72 %
    autoencoder=HUNYUAN_AUTOENCODER,
    # 105 seconds of images at a constant rate gave 17.5 dB with 3e-3, with frequent setbacks, and 21.2 dB with this rate.
    # Short clips and images have more corners per second of training than long clips; without them stars become circles
    vae_training=VaeTraining(
        learning_rate=1.2e-3,
        image_share=0.1,
        spread_weight=0.005,
        refining=((96, 96, 5, 8), (96, 96, 1, 24), (96, 96, 17, 3), (128, 96, 5, 6)),
    ),
    make_tokenizer=make_chat_tokenizer,
    create_text=ChatText.create,
    create=lambda text, tokenizer, device: HunyuanNetworks.create(ChatText.load(text, tokenizer, device), device),
    load=HunyuanNetworks.load,
    schedule=_euler,
    assemble=assemble_hunyuan,
)

LTX_TINY = Recipe(
    pipeline="LTX2ImageToVideoPipeline",
    has_speed=False,
    is_compiled=True,  # halves the time of a step, measured
    seconds=StageSeconds(vae=1800, text=240, sound=1800, transformer=4800, refine=600),  # first the video, then the audio
    buckets=(
        Bucket(width=96, height=96, num_frames=17, share=0.82, batch=32, clips=1280),
        Bucket(width=128, height=96, num_frames=17, share=0.06, batch=16, clips=128),
        Bucket(width=96, height=128, num_frames=17, share=0.06, batch=16, clips=128),
        Bucket(width=96, height=96, num_frames=33, share=0.06, batch=16, clips=128),
    ),
    text_learning_rate=3e-3,
    autoencoder=LTX_AUTOENCODER,
    vae_training=VaeTraining(learning_rate=2e-3, spread_weight=0.002, in_bfloat16=True),
    make_tokenizer=make_ltx_tokenizer,
    create_text=GemmaText.create,
    create=create_ltx,
    load=LtxNetworks.load,
    schedule=_ltx,
    assemble=assemble_ltx,
    train_sound=lambda folder, seconds, device, trained: train_sound(folder, SoundTraining(seconds=seconds), device, trained),
)

RECIPES = {"wan-tiny": WAN_TINY, "hunyuan-tiny": HUNYUAN_TINY, "ltx-tiny": LTX_TINY}


def recipe_of(model: Path) -> Recipe:
    """Return the recipe of a checkpoint folder. Raises: ValueError if the folder is not a demo model."""
    pipeline = json.loads((model / "model_index.json").read_text("utf-8"))["_class_name"]
    for recipe in RECIPES.values():
        if recipe.pipeline == pipeline:
            return recipe
    raise ValueError(f"{model} is a {pipeline}; demo models are {', '.join(RECIPES)}")
