"""The trained networks of hunyuan-tiny: the transformer, the encoder of quoted text and the image encoder.

One transformer learns both tasks, one per batch. With an image, its latents and a mask are further input channels, and the image
encoder's tokens are added to the sequence. Without an image, these channels are zero and the image tokens are masked. All frames
are noised and count in the loss. Training runs diffusers' own forward function, with as many padded positions as the world needs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import HunyuanVideo15Transformer3DModel
from diffusers.pipelines.hunyuan_video1_5.pipeline_hunyuan_video1_5 import extract_glyph_texts
from transformers import ByT5Tokenizer, SiglipVisionConfig, SiglipVisionModel, T5Config, T5EncoderModel

from training.chat_text import ChatText
from training.hunyuan_configs import IMAGE_ENCODER, PICTURE_SIDE, QUOTED_ENCODER, TRANSFORMER
from training.train_transformer import TransformerTraining, noise_levels, prompt_for
from training.world import Scene, render

QUOTED_POSITIONS = 14  # tokens of diffusers' pipelines for a quoted word of four letters with its end


class HunyuanNetworks:
    """See `Networks`."""

    # input and output layers, embeddings, and the modulation by the timestep
    adamw_names = (
        "x_embedder",
        "proj_out",
        "norm_out.linear",
        "time_embed",
        "time_text_embed",
        "cond_type_embed",
        "shared",
        "embed_tokens",
        "relative_attention_bias",
        "patch_embedding",
        "position_embedding",
    )

    def __init__(
        self,
        text: ChatText,
        transformer: HunyuanVideo15Transformer3DModel,
        quoted_encoder: T5EncoderModel,
        image_encoder: SiglipVisionModel,
    ) -> None:
        self.text, self.latent_channels = text, transformer.config.out_channels
        self._parts = {"transformer": transformer, "quoted_encoder": quoted_encoder, "image_encoder": image_encoder}
        self.learned = torch.nn.ModuleDict(self._parts)
        self._quoted_tokenizer = ByT5Tokenizer()
        # 2048 x 2048 for two words is frozen: AdamW's steps are too large for it, and Muon takes too long
        transformer.context_embedder_2.linear_2.requires_grad_(False)
        transformer.x_embedder.register_forward_hook(lambda module, inputs, tokens: tokens.float())  # also under autocast

    @classmethod
    def create(cls, text: ChatText, device: str) -> HunyuanNetworks:
        """Create networks with random weights. The transformer predicts zero."""
        transformer = HunyuanVideo15Transformer3DModel(**TRANSFORMER).to(device)
        torch.nn.init.zeros_(transformer.proj_out.weight)
        torch.nn.init.zeros_(transformer.proj_out.bias)
        torch.nn.init.normal_(transformer.cond_type_embed.weight, std=0.02)  # PyTorch's default is larger than the tokens' values
        quoted_encoder = T5EncoderModel(T5Config(**QUOTED_ENCODER)).to(device)
        return cls(text, transformer, quoted_encoder, SiglipVisionModel(SiglipVisionConfig(**IMAGE_ENCODER)).to(device))

    @classmethod
    def load(cls, folder: Path, tokenizer_folder: Path, device: str) -> HunyuanNetworks:
        """Load the networks of a checkpoint or of a work folder, in float32."""
        return cls(
            ChatText.load(folder / "text_encoder", tokenizer_folder, device),
            HunyuanVideo15Transformer3DModel.from_pretrained(folder / "transformer", torch_dtype=torch.float32).to(device),
            T5EncoderModel.from_pretrained(folder / "text_encoder_2", dtype=torch.float32).to(device),
            SiglipVisionModel.from_pretrained(folder / "image_encoder", dtype=torch.float32).to(device),
        )

    def compile(self) -> None:
        """See `Networks`."""
        for block in self._parts["transformer"].transformer_blocks:
            block.compile(dynamic=False)

    def words_for(self, scene: Scene, rng: random.Random, options: TransformerTraining) -> str:
        """See `Networks`."""
        return prompt_for(scene, rng, options)

    def loss(
        self,
        latents: torch.Tensor,
        scenes: list[Scene],
        prompts: list[str],
        options: TransformerTraining,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """See `Networks`. A batch has an image for each clip, or for none."""
        device = latents.device
        sigma = noise_levels(len(prompts), options, generator, device)
        noise = torch.randn(latents.shape, generator=generator, device=device)
        is_continued = torch.rand(1, generator=generator, device=device).item() < options.image_to_video
        with torch.autocast(device.type, torch.bfloat16):
            size = latents.shape[4] * 16, latents.shape[3] * 16
            pictures = torch.stack([render(scene, 1, *size) for scene in scenes]).to(device) if is_continued else None
            beside = self._other_inputs(prompts, pictures)
            mixed = latents + sigma.view(-1, 1, 1, 1, 1) * (noise - latents)
            predicted = self._velocity(mixed, 1000 * sigma, beside, latents[:, :, :1] if is_continued else None)
        return (predicted.float() - (noise - latents)).square().mean()

    def velocity_for(
        self, prompts: list[str], images: torch.Tensor | None, first: torch.Tensor | None
    ) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """See `Networks`."""
        beside = self._other_inputs(prompts, images)
        return lambda latents, timesteps: self._velocity(latents, timesteps, beside, first)

    def finish(self, latents: torch.Tensor, first: torch.Tensor | None) -> torch.Tensor:
        """Return the latents unchanged, because the first frame is denoised like the others."""
        return latents

    def _velocity(
        self, latents: torch.Tensor, timesteps: torch.Tensor, beside: dict[str, torch.Tensor], first: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the velocity [B, C, F, H, W]. `first` [B, C, 1, H, W] are the image's latents."""
        given = torch.zeros_like(latents[:, :1]).repeat(1, self.latent_channels + 1, 1, 1, 1)
        if first is not None:
            given[:, :-1, :1], given[:, -1:, :1] = first, 1.0
        return self._parts["transformer"](torch.cat([latents, given], 1), timesteps, **beside, return_dict=False)[0]

    def _other_inputs(self, prompts: list[str], pictures: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Return the transformer's other inputs for prompts and optional images [B, 3, 1, H, W] in [-1, 1]."""
        with torch.no_grad():
            text, mask = self.text.encode(prompts)
        quoted, quoted_mask = self._encode_quoted(prompts)
        return {
            "encoder_hidden_states": text.float(),
            "encoder_attention_mask": mask,
            "encoder_hidden_states_2": quoted,
            "encoder_attention_mask_2": quoted_mask,
            "image_embeds": self._encode_pictures(pictures, len(prompts)),
        }

    def _encode_quoted(self, prompts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return embeddings [B, Q, D] of quoted text and their mask [B, Q]. Equal texts are encoded once."""
        encoder, device = self._parts["quoted_encoder"], self.text.encoder.device
        quoted = [extract_glyph_texts(prompt) or "" for prompt in prompts]
        texts = sorted(set(quoted))
        tokens: Any = self._quoted_tokenizer(texts, padding=True, return_tensors="pt").to(device)
        counts = tokens.attention_mask * torch.tensor([[bool(text)] for text in texts], device=device)
        hidden = encoder(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask).last_hidden_state
        rows = torch.tensor([texts.index(text) for text in quoted], device=device)
        missing = max(0, QUOTED_POSITIONS - hidden.shape[1])
        return F.pad((hidden * counts[..., None])[rows], (0, 0, 0, missing)), F.pad(counts[rows], (0, missing))

    def _encode_pictures(self, pictures: torch.Tensor | None, batch: int) -> torch.Tensor:
        """Return image tokens [B, N, D], zeros without images. The preprocessor resizes in the same way, but in 8 bits."""
        encoder = self._parts["image_encoder"]
        if pictures is None:
            tokens = (encoder.config.image_size // encoder.config.patch_size) ** 2
            return torch.zeros(batch, tokens, encoder.config.hidden_size, device=encoder.device)
        pixels = pictures[:, :, 0]
        if pixels.shape[2:] != (PICTURE_SIDE, PICTURE_SIDE):
            pixels = F.interpolate(pixels, (PICTURE_SIDE, PICTURE_SIDE), mode="bicubic", antialias=True)
        return encoder(pixel_values=pixels).last_hidden_state.float()

    def save(self, folder: Path) -> None:
        """See `Networks`."""
        self.text.save(folder / "text_encoder")
        self._parts["transformer"].save_pretrained(folder / "transformer")
        self._parts["quoted_encoder"].save_pretrained(folder / "text_encoder_2")
        self._parts["image_encoder"].save_pretrained(folder / "image_encoder")
