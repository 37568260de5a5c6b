"""wan-tiny-vace's transformer in training: wan-tiny's layers and the control blocks beside them are trained together."""

from __future__ import annotations

import dataclasses
import logging
import random

import torch
import torch.nn.functional as F
from diffusers import WanTransformer3DModel, WanVACETransformer3DModel

from training.prompts import describe, describe_figure, figure_words
from training.train_transformer import TransformerTraining, noise_levels, prompt_for
from training.vace_world import Task
from training.velocity import predict_velocity
from training.wan_networks import TEXT_POSITIONS, WanNetworks, WanText
from training.world import COLOURS, SHAPES

logger = logging.getLogger(__name__)

VACE_LAYERS = (0, 2, 4)
LEARNED = ("vace_", "blocks.")  # prefixes of the trained parameters' names
READ_WEIGHT = 0.15  # weight of recognising the reference in the control blocks; the velocity has 1
REFERENCE_NOISE_SHIFT = 4.0  # the first steps determine the shape
LOOK_SHARE = 0.15  # share of the prompts with a reference image that describe its shape
REFERENCE_TEXT_DROPOUT = 0.2  # with a reference image; tasks without a prompt get another image, see `VaceNetworks`


class VaceNetworks(WanNetworks):
    """See `Networks`. The inputs of the control blocks are further channels of a clip's latents: see `vace.ControlCache`.

    With a reference image, each of the video's tokens in the control blocks must represent the image's colour and shape. An
    additional layer reads them; it is not part of the checkpoint. So the network soon learns to use the image. If the prompt is
    dropped, the reference image belongs to another clip and contains no information. Guidance then strengthens the image as well
    as the prompt.
    """

    adamw_names = ("vace_patch_embedding", "scale_shift_table")

    def __init__(self, text: WanText, transformer: WanVACETransformer3DModel) -> None:
        super().__init__(text, transformer)
        for name, parameter in transformer.named_parameters():
            parameter.requires_grad_(name.startswith(LEARNED))
        width = transformer.config.num_attention_heads * transformer.config.attention_head_dim
        self._reader = torch.nn.Linear(width, len(COLOURS) + len(SHAPES)).to(transformer.device)
        self._running = 3.0
        self._reader_learns = torch.optim.Adam(self._reader.parameters(), lr=2e-3)

    @classmethod
    def begin(cls, base: WanNetworks, mask_channels: int) -> VaceNetworks:
        """Create control blocks as copies of the layers that their hints follow, with zero output at first."""
        channels = 2 * base.latent_channels + mask_channels
        return cls(base.text, controlled(base.learned, VACE_LAYERS, channels))

    @classmethod
    def load(cls, folder, tokenizer_folder, device: str) -> VaceNetworks:
        """Load the networks of a work folder in float32."""
        transformer = WanVACETransformer3DModel.from_pretrained(folder / "transformer", torch_dtype=torch.float32).to(device)
        return cls(WanText.load(folder / "text_encoder", tokenizer_folder, device), transformer)

    def words_for(self, scene: Task, rng: random.Random, options: TransformerTraining) -> str:
        """See `Networks`."""
        if scene.reference is None:
            return prompt_for(scene.scene, rng, options)
        words = figure_prompt_for(scene, rng, dataclasses.replace(options, text_dropout=REFERENCE_TEXT_DROPOUT))
        is_short = len(self.text.tokenizer(words).input_ids) < TEXT_POSITIONS
        return words if is_short else describe_figure(scene.scene, rng, "it")

    def loss(
        self,
        latents: torch.Tensor,
        scenes: list[Task],
        prompts: list[str],
        options: TransformerTraining,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """See `Networks`."""
        clip, control = latents.split([self.latent_channels, latents.shape[1] - self.latent_channels], 1)
        has_reference = scenes[0].reference is not None
        if has_reference:
            options = dataclasses.replace(options, noise_shift=REFERENCE_NOISE_SHIFT)
            clip, control = (with_other_references(part, prompts) for part in (clip, control))
        sigma = noise_levels(len(prompts), options, generator, latents.device)
        noise = torch.randn(clip.shape, generator=generator, device=latents.device)
        mixed = clip + sigma.view(-1, 1, 1, 1, 1) * (noise - clip)
        with torch.no_grad(), torch.autocast(latents.device.type, torch.bfloat16):
            text, bias = self.text.encode(prompts)
        timesteps = 1000 * sigma, 1000 * sigma
        tokens: list[torch.Tensor] = []
        predicted = predict_velocity(
            self.learned,
            mixed,
            *timesteps,
            text.float(),
            bias,
            run_block=self._run_block,
            control=control,
            control_tokens=tokens,
        )
        error = (predicted - (noise - clip)).square().mean()
        return error + READ_WEIGHT * self._unread(tokens, scenes, prompts, clip.shape[2]) if has_reference else error

    def _unread(self, tokens: list[torch.Tensor], scenes: list[Task], prompts: list[str], num_frames: int) -> torch.Tensor:
        """Return the cross-entropy of colour and shape of the reference, read from the video's tokens after the first control
        block. Tasks without a prompt do not count."""
        self._reader_learns.step()  # by the gradients of the previous step
        self._reader_learns.zero_grad()
        told = [index for index, prompt in enumerate(prompts) if prompt]
        lost = torch.zeros((), device=tokens[0].device)
        if not told:
            return lost
        colours = lost.new_tensor([[*COLOURS].index(scenes[index].scene.colour) for index in told], dtype=torch.long)
        shapes = lost.new_tensor([SHAPES.index(scenes[index].scene.shape) for index in told], dtype=torch.long)
        for after in tokens[1:]:
            own = after[told, after.shape[1] // num_frames :]  # without the reference's frame
            read = self._reader(F.layer_norm(own, own.shape[-1:])).flatten(0, 1)
            colour, shape = read.split([len(COLOURS), len(SHAPES)], 1)
            repeated = own.shape[1]
            lost = lost + F.cross_entropy(colour, colours.repeat_interleave(repeated))
            lost = lost + F.cross_entropy(shape, shapes.repeat_interleave(repeated))
        lost = lost / len(tokens[1:])
        self._running = 0.95 * self._running + 0.05 * float(lost.detach())
        logger.debug("reading of references %.3f", self._running)
        return lost


def with_other_references(latents: torch.Tensor, prompts: list[str]) -> torch.Tensor:
    """Return latents [B, C, F, H, W] where tasks with an empty prompt have the next clip's reference image as first frame."""
    is_other = torch.tensor([not prompt for prompt in prompts], device=latents.device).view(-1, 1, 1, 1, 1)
    first = torch.where(is_other, latents[:, :, :1].roll(-1, 0), latents[:, :, :1])
    return torch.cat([first, latents[:, :, 1:]], 2)


def figure_prompt_for(task: Task, rng: random.Random, options: TransformerTraining) -> str:
    """Write a sentence for a task with a reference image. Most sentences name the shape, some describe it, and some are shorter
    or empty."""
    draw = rng.random()
    if draw < options.text_dropout:
        return ""
    detail = 0.5 if draw < options.text_dropout + options.partial_prompt else 1.0
    if rng.random() < LOOK_SHARE:
        return describe(task.scene, rng, detail)
    return describe_figure(task.scene, rng, figure_words(rng), detail)


def controlled(base: WanTransformer3DModel, layers: tuple[int, ...], channels: int) -> WanVACETransformer3DModel:
    """Return the transformer with control blocks after these layers, with zero output, for control latents of `channels`."""
    kept = ("patch_size", "num_attention_heads", "attention_head_dim", "in_channels", "out_channels", "text_dim", "freq_dim",
            "ffn_dim", "num_layers", "cross_attn_norm", "qk_norm", "eps", "rope_max_seq_len")  # fmt: skip
    config = {name: base.config[name] for name in kept}
    made = WanVACETransformer3DModel(**config, vace_layers=list(layers), vace_in_channels=channels).to(base.device)
    made.load_state_dict(base.state_dict(), strict=False)
    for block, layer in zip(made.vace_blocks, layers, strict=True):
        block.load_state_dict(base.blocks[layer].state_dict(), strict=False)
        for linear in (block.proj_in, block.proj_out):
            if linear is not None:
                torch.nn.init.zeros_(linear.weight)
                torch.nn.init.zeros_(linear.bias)
    return made
