"""The trained networks of wan-tiny: a UMT5 text encoder and a Wan transformer that learns both tasks.

They have the form of Wan 2.2 TI2V: every token has its own timestep. For image to video the first latent frame is clean, at
timestep 0 and outside the loss.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import WanTransformer3DModel
from transformers import AutoTokenizer, PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from training.model_configs import MAX_SEQUENCE_LENGTH, TEXT_ENCODER, TRANSFORMER
from training.train_transformer import TransformerTraining, noise_levels, prompt_for
from training.velocity import predict_velocity, run_one_block
from training.world import Scene

TEXT_POSITIONS = 32  # the longest sentence of the world has fewer tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class WanText:
    """See `TextModel`. Attention is bidirectional, so every token must represent the sentence's content."""

    encoder: UMT5EncoderModel
    tokenizer: PreTrainedTokenizerFast
    width: int = TEXT_ENCODER["d_model"]

    @classmethod
    def create(cls, tokenizer_folder: Path, device: str) -> WanText:
        """Create the model with random weights."""
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
        return cls(
            encoder=UMT5EncoderModel(UMT5Config(vocab_size=len(tokenizer), **TEXT_ENCODER)).to(device), tokenizer=tokenizer
        )

    @classmethod
    def load(cls, folder: Path, tokenizer_folder: Path, device: str) -> WanText:
        """Load the model from a folder of `save`."""
        encoder = UMT5EncoderModel.from_pretrained(folder).to(device)
        return cls(encoder=encoder, tokenizer=AutoTokenizer.from_pretrained(tokenizer_folder))

    def read(self, sentences: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """See `TextModel`."""
        tokens = self.tokenizer(sentences, padding="max_length", max_length=TEXT_POSITIONS - 1, return_tensors="pt")
        tokens = tokens.to(self.encoder.device)
        return self.encoder(**tokens).last_hidden_state, tokens.attention_mask

    def encode(self, prompts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return embeddings [B, 32, D], zero after each prompt's end, and the logit bias [B, 1, 1, 32].

        The last position represents all padded positions; the other padded positions are masked.
        """
        hidden, mask = self.read(prompts)
        bias = torch.where(mask.bool(), 0.0, float("-inf"))
        padding = torch.log((MAX_SEQUENCE_LENGTH - mask.sum(1)).float())[:, None]
        return F.pad(hidden * mask[..., None], (0, 0, 0, 1)), torch.cat([bias, padding], 1)[:, None, None, :]

    def save(self, folder: Path) -> None:
        """Write the encoder."""
        self.encoder.save_pretrained(folder)


class WanNetworks:
    """See `Networks`."""

    adamw_names = (
        "patch_embedding",
        "proj_out",
        "scale_shift_table",
        "time_embedder",
    )  # input and output layers, and parameters that are no matrices

    def __init__(self, text: WanText, transformer: WanTransformer3DModel) -> None:
        self.text, self.learned = text, transformer
        self.latent_channels = transformer.config.in_channels
        self._run_block = run_one_block

    @classmethod
    def create(cls, text: WanText, device: str) -> WanNetworks:
        """Create a transformer with random weights that predicts zero."""
        transformer = WanTransformer3DModel(**TRANSFORMER).to(device)
        torch.nn.init.zeros_(transformer.proj_out.weight)
        torch.nn.init.zeros_(transformer.proj_out.bias)
        return cls(text, transformer)

    @classmethod
    def load(cls, folder: Path, tokenizer_folder: Path, device: str) -> WanNetworks:
        """Load the networks of a checkpoint or of a work folder, in float32."""
        transformer = WanTransformer3DModel.from_pretrained(folder / "transformer", torch_dtype=torch.float32).to(device)
        return cls(WanText.load(folder / "text_encoder", tokenizer_folder, device), transformer)

    def compile(self) -> None:
        """See `Networks`."""
        self._run_block = torch.compile(run_one_block, dynamic=False)

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
        """See `Networks`. The loss covers the noised latent frames."""
        batch, device = len(prompts), latents.device
        sigma = noise_levels(batch, options, generator, device)
        noise = torch.randn(latents.shape, generator=generator, device=device)
        mask = torch.ones(batch, 1, latents.shape[2], 1, 1, device=device)
        mask[:, :, 0] = (torch.rand(batch, 1, 1, 1, generator=generator, device=device) >= options.image_to_video).float()
        mixed = latents + mask * sigma.view(-1, 1, 1, 1, 1) * (noise - latents)
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
            text, bias = self.text.encode(prompts)
        timesteps = 1000 * sigma, 1000 * sigma * mask[:, 0, 0, 0, 0]
        predicted = predict_velocity(self.learned, mixed, *timesteps, text.float(), bias, run_block=self._run_block)
        error = (predicted - (noise - latents)).square() * mask
        return error.sum() / (mask.sum() * error[0, :, 0].numel())

    def velocity_for(
        self, prompts: list[str], images: torch.Tensor | None, first: torch.Tensor | None
    ) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """See `Networks`. The image's latents replace the first frame."""
        text, bias = self.text.encode(prompts)

        def velocity(latents: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
            latents = self.finish(latents, first)
            first_timesteps = timesteps if first is None else torch.zeros_like(timesteps)
            return predict_velocity(
                self.learned, latents, timesteps, first_timesteps, text, bias, torch.float32, run_block=self._run_block
            )

        return velocity

    def finish(self, latents: torch.Tensor, first: torch.Tensor | None) -> torch.Tensor:
        """Return the latents with the image's latents as first frame."""
        return latents if first is None else torch.cat([first, latents[:, :, 1:]], 2)

    def save(self, folder: Path) -> None:
        """See `Networks`."""
        self.text.save(folder / "text_encoder")
        self.learned.save_pretrained(folder / "transformer")
