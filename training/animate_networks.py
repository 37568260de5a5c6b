"""wan-tiny-animate's transformer in training: Wan-Animate-2's class with wan-tiny's weights at the start."""

from __future__ import annotations

import random

import torch
from diffusers import WanAnimate2Transformer3DModel, WanTransformer3DModel

from training.animate_velocity import predict_animated, run_animated_block
from training.animate_world import Pair
from training.model_configs import MAX_SEQUENCE_LENGTH
from training.train_transformer import TransformerTraining, noise_levels, prompt_for
from training.wan_networks import WanNetworks, WanText

REFERENCE_PROMPT = "人物动作的参考视频"  # diffusers' default `prompt_ref`: reference video of the character's motion
MASK_CHANNELS = 4  # one for each pixel frame of a latent frame
NAMES = {  # wan-tiny's names of layers, and the class's names
    "condition_embedder.text_embedder.linear_1": "text_embedding.0",
    "condition_embedder.text_embedder.linear_2": "text_embedding.2",
    "condition_embedder.time_embedder.linear_1": "time_embedding.0",
    "condition_embedder.time_embedder.linear_2": "time_embedding.2",
    "condition_embedder.time_proj": "time_projection.1",
    ".attn1.": ".self_attn.",
    ".attn2.": ".cross_attn.",
    ".norm2.": ".norm3.",
    ".ffn.net.0.proj.": ".ffn.0.",
    ".ffn.net.2.": ".ffn.2.",
    ".scale_shift_table": ".modulation",
    "proj_out": "head.head",
}


class AnimateNetworks(WanNetworks):
    """See `Networks`. A task's channels are the clean latents, the condition and the driving video, as in
    `animate.AnimateCache`."""

    adamw_names = ("patch_embedding", "head.head", "modulation", "time_embedding")

    def __init__(self, text: WanText, transformer: WanAnimate2Transformer3DModel) -> None:
        self.text, self.learned = text, transformer
        self.latent_channels = transformer.config.out_dim
        self._run_block = run_animated_block
        with torch.no_grad():
            self.driving_text = text.encode([REFERENCE_PROMPT])

    @classmethod
    def begin(cls, base: WanNetworks) -> AnimateNetworks:
        """Create the networks with wan-tiny's weights, which ignore images and masks at first."""
        return cls(base.text, begin_as(base.learned))

    @classmethod
    def load(cls, folder, tokenizer_folder, device: str) -> AnimateNetworks:
        """Load the networks of a checkpoint or of a work folder, in float32."""
        transformer = WanAnimate2Transformer3DModel.from_pretrained(folder / "transformer", torch_dtype=torch.float32)
        return cls(WanText.load(folder / "text_encoder", tokenizer_folder, device), transformer.to(device))

    def compile(self) -> None:
        """See `Networks`."""
        self._run_block = torch.compile(run_animated_block, dynamic=False)

    def words_for(self, scene: Pair, rng: random.Random, options: TransformerTraining) -> str:
        """See `Networks`. The prompt describes the image's scene; its motion differs from the video's motion."""
        return prompt_for(scene.picture, rng, options)

    def loss(
        self,
        latents: torch.Tensor,
        scenes: list[Pair],
        prompts: list[str],
        options: TransformerTraining,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """See `Networks`. The loss includes the image's frame, which is denoised like the others."""
        channels = self.latent_channels
        clean, condition, driving = latents.split([channels, MASK_CHANNELS + channels, channels], 1)
        sigma = noise_levels(len(prompts), options, generator, latents.device)
        noise = torch.randn(clean.shape, generator=generator, device=latents.device)
        mixed = clean + sigma.view(-1, 1, 1, 1, 1) * (noise - clean)
        with torch.no_grad(), torch.autocast(latents.device.type, torch.bfloat16):
            text, bias = self.text.encode(prompts)
        predicted = self.predict(mixed, condition, driving[:, :, 1:], 1000 * sigma, (text.float(), bias), torch.bfloat16)
        return (predicted - (noise - clean)).square().mean()

    def predict(
        self,
        latents: torch.Tensor,
        condition: torch.Tensor,
        driving: torch.Tensor,
        timestep: torch.Tensor,
        text: tuple[torch.Tensor, torch.Tensor],
        dtype: torch.dtype = torch.float32,
    ) -> torch.Tensor:
        """See `predict_animated`. The driving video has diffusers' default prompt."""
        return predict_animated(
            self.learned, latents, condition, driving, timestep, text, self.driving_text, dtype, self._run_block
        )


def begin_as(base: WanTransformer3DModel) -> WanAnimate2Transformer3DModel:
    """Create the class with wan-tiny's weights and zero weights for the condition's channels."""
    config = base.config
    made = WanAnimate2Transformer3DModel(
        patch_size=tuple(config.patch_size),
        text_len=MAX_SEQUENCE_LENGTH,
        in_dim=2 * config.in_channels + MASK_CHANNELS,
        dim=config.num_attention_heads * config.attention_head_dim,
        ffn_dim=config.ffn_dim,
        freq_dim=config.freq_dim,
        text_dim=config.text_dim,
        out_dim=config.out_channels,
        num_heads=config.num_attention_heads,
        num_layers=config.num_layers,
        cross_attn_norm=config.cross_attn_norm,
        eps=config.eps,
        use_img_emb=False,
    ).to(base.device)
    weights = {renamed(name): value for name, value in base.state_dict().items()}
    patches = torch.zeros_like(made.patch_embedding.weight)
    patches[:, : config.in_channels] = weights["patch_embedding.weight"]
    made.load_state_dict(weights | {"patch_embedding.weight": patches})
    return made


def renamed(name: str) -> str:
    """Return the class's name of a weight of wan-tiny."""
    if name == "scale_shift_table":
        return "head.modulation"
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name
