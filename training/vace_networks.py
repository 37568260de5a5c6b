"""wan-tiny-vace's transformer in training: wan-tiny's layers and control blocks beside them, which learn together."""

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
LEARNED = ("vace_", "blocks.")  # with which the names of what is learned begin
READ_WEIGHT = 0.15  # of what the control blocks should show of a reference, beside the velocity
REFERENCE_NOISE_SHIFT = 4.0  # what a shape is, is decided in the first steps
LOOK_SHARE = 0.15  # of the prompts beside a reference picture: those that say what it shows
REFERENCE_TEXT_DROPOUT = 0.2  # beside a reference: without a prompt another one is shown, see `VaceNetworks`


class VaceNetworks(WanNetworks):
    """See `Networks`. A clip's latents come with what is shown of it as further channels: see `vace.ControlCache`.

    Beside a reference picture, each of the video's tokens in the control blocks must show its colour and shape, which a layer
    reads that is in no checkpoint: so the way from the picture to the video is found soon. Where the prompt is dropped the
    reference picture is another clip's, so that nothing can be learned from it: guidance then raises what the picture shows as
    it raises what the prompt says.
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
        """Control blocks that begin as copies of the layers after which their hints come, and hand over nothing yet."""
        channels = 2 * base.latent_channels + mask_channels
        return cls(base.text, controlled(base.learned, VACE_LAYERS, channels))

    @classmethod
    def load(cls, folder, tokenizer_folder, device: str) -> VaceNetworks:
        """The networks of a parts folder, in float32."""
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
        """Cross-entropy of what the video's tokens show of the reference, after the first control block; not of those without
        a prompt."""
        self._reader_learns.step()  # by the gradients of the step before
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
    """Latents [B, C, F, H, W] whose first frame, the reference picture, is the next clip's where the prompt is empty."""
    is_other = torch.tensor([not prompt for prompt in prompts], device=latents.device).view(-1, 1, 1, 1, 1)
    first = torch.where(is_other, latents[:, :, :1].roll(-1, 0), latents[:, :, :1])
    return torch.cat([first, latents[:, :, 1:]], 2)


def figure_prompt_for(task: Task, rng: random.Random, options: TransformerTraining) -> str:
    """A sentence for what a reference picture shows, which names it in most cases and says what it looks like in some; now and
    then one that says less, or nothing."""
    draw = rng.random()
    if draw < options.text_dropout:
        return ""
    detail = 0.5 if draw < options.text_dropout + options.partial_prompt else 1.0
    if rng.random() < LOOK_SHARE:
        return describe(task.scene, rng, detail)
    return describe_figure(task.scene, rng, figure_words(rng), detail)


def controlled(base: WanTransformer3DModel, layers: tuple[int, ...], channels: int) -> WanVACETransformer3DModel:
    """The transformer with control blocks that change nothing yet, after these layers, for control latents of `channels`."""
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
