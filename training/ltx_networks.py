"""The trained networks of ltx-tiny: the connectors and a transformer of two streams, which learn all tasks at once.

The tasks are video with audio from a prompt, the same with a clean first frame, video for given audio, and audio for given video.
Given inputs are clean, at timestep 0, and outside the loss. The forward pass is the class's own.
"""

from __future__ import annotations

import dataclasses
import random
import types
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import LTX2VideoTransformer3DModel
from diffusers.pipelines.ltx2 import LTX2TextConnectors
from torch.nn.attention import SDPBackend, sdpa_kernel

from training.hum import hum
from training.ltx_configs import CONNECTORS, SOUND_BINS, SOUND_CHANNELS, SPATIAL, TEMPORAL, TRANSFORMER
from training.ltx_text import GemmaText
from training.model_configs import FPS
from training.prompts import describe_look
from training.sound_networks import SoundNetworks
from training.train_transformer import TransformerTraining, noise_levels, prompt_for
from training.world import Scene

SOUND_GIVEN, PICTURE_GIVEN = 0.15, 0.1  # shares of the clips
LOOK_ONLY = 0.1  # share of the prompts
SOUND_WEIGHT = 0.5  # weight of the audio error; the video error has 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Given:
    """The given inputs of B clips: 0 for clean latents, 1 for noised latents. `video` [B, 1, F, 1, 1], `sound` [B]."""

    video: torch.Tensor
    sound: torch.Tensor

    @classmethod
    def drawn(cls, latents: torch.Tensor, options: TransformerTraining, generator: torch.Generator) -> Given:
        """Draw random given inputs for training."""
        batch, device = len(latents), latents.device
        draw = torch.rand(batch, generator=generator, device=device)
        sound = (draw >= SOUND_GIVEN).float()
        video = torch.ones(batch, 1, latents.shape[2], 1, 1, device=device)
        video[draw > 1 - PICTURE_GIVEN] = 0.0
        video[:, :, 0] *= (torch.rand(batch, 1, 1, 1, generator=generator, device=device) >= options.image_to_video).float()
        return cls(video=video, sound=sound)


class LtxNetworks:
    """See `Networks`. `sound` encodes audio to latents [B, C, L, M]."""

    adamw_names = ("proj_in", "proj_out", "scale_shift_table", "time_embed", "learnable_registers", "gate_logits", "emb.timestep")
    latent_channels = TRANSFORMER["in_channels"]

    def __init__(
        self, text: GemmaText, connectors: LTX2TextConnectors, transformer: LTX2VideoTransformer3DModel, sound: SoundNetworks
    ) -> None:
        self.text, self.connectors, self.transformer, self.sound = text, connectors, transformer, sound
        self.learned = torch.nn.ModuleDict({"connectors": connectors, "transformer": transformer})
        for norm in (one for one in self.learned.modules() if isinstance(one, torch.nn.RMSNorm)):
            norm.forward = types.MethodType(_normalise, norm)
        self._heard: dict[tuple[Scene, int, int, int], torch.Tensor] = {}

    @classmethod
    def create(cls, text: GemmaText, sound: SoundNetworks, device: str) -> LtxNetworks:
        """Create networks with random weights that predict zero."""
        transformer = LTX2VideoTransformer3DModel(**TRANSFORMER).to(device)
        for layer in (transformer.proj_out, transformer.audio_proj_out):
            torch.nn.init.zeros_(layer.weight)
            torch.nn.init.zeros_(layer.bias)
        return cls(text, LTX2TextConnectors(**CONNECTORS).to(device), transformer, sound)

    @classmethod
    def load(cls, folder: Path, tokenizer_folder: Path, device: str) -> LtxNetworks:
        """Load the networks of a checkpoint in float32."""
        transformer = LTX2VideoTransformer3DModel.from_pretrained(folder / "transformer", torch_dtype=torch.float32)
        connectors = LTX2TextConnectors.from_pretrained(folder / "connectors", torch_dtype=torch.float32)
        text = GemmaText.load(folder / "text_encoder", tokenizer_folder, device)
        return cls(text, connectors.to(device), transformer.to(device), SoundNetworks.load(folder, device))

    def compile(self) -> None:
        """See `Networks`."""
        for block in self.transformer.transformer_blocks:
            block.compile(dynamic=False)

    def words_for(self, scene: Scene, rng: random.Random, options: TransformerTraining) -> str:
        """See `Networks`. Some prompts describe only the look, so the motion follows from given audio or video."""
        return describe_look(scene, rng) if rng.random() < LOOK_ONLY else prompt_for(scene, rng, options)

    def loss(
        self,
        latents: torch.Tensor,
        scenes: list[Scene],
        prompts: list[str],
        options: TransformerTraining,
        generator: torch.Generator,
    ) -> torch.Tensor:
        """See `Networks`. The loss covers the noised latents of both streams."""
        heard = self._sounds_of(scenes, latents)
        given = Given.drawn(latents, options, generator)
        sigma = noise_levels(len(prompts), options, generator, latents.device)
        mixed, noise = [], []
        for clean, mask in ((latents, given.video), (heard, given.sound[:, None, None, None])):
            drawn = torch.randn(clean.shape, generator=generator, device=clean.device)
            noise.append(drawn)
            mixed.append(clean + mask * sigma.view(-1, *[1] * (clean.ndim - 1)) * (drawn - clean))
        # with separate operations, attention and its gradient take half as long on a CPU, measured
        with torch.autocast(latents.device.type, torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
            with torch.no_grad():
                states, mask = self.text.encode(prompts)
            texts = self.connectors(states.float(), mask)[:2]
            video, sound = self.velocities(*mixed, 1000 * sigma, given, texts)
        picture = ((video.float() - (noise[0] - latents)).square() * given.video).mean() / given.video.mean()
        tone = (sound.float() - (noise[1] - heard)).square().mean((1, 2, 3)) * given.sound
        return picture + SOUND_WEIGHT * tone.mean() / given.sound.mean()

    def velocities(
        self, video: torch.Tensor, sound: torch.Tensor, timesteps: torch.Tensor, given: Given, texts: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the velocities of both streams. `timesteps` [B] are the timesteps of the noised latents."""
        batch, _, frames, height, width = video.shape
        length = sound.shape[2]
        times = (timesteps.view(-1, 1, 1, 1, 1) * given.video).expand(batch, 1, frames, height, width).flatten(1)
        sound_times = timesteps * given.sound
        made = self.transformer(
            video.flatten(2).transpose(1, 2),
            sound.transpose(1, 2).flatten(2),
            *texts,
            timestep=times,
            audio_timestep=sound_times,
            sigma=times.amax(1),
            audio_sigma=sound_times,
            num_frames=frames,
            height=height,
            width=width,
            fps=FPS,
            audio_num_frames=length,
            use_cross_timestep=True,
            return_dict=False,
        )
        return (
            made[0].transpose(1, 2).reshape(video.shape),
            made[1].unflatten(2, (SOUND_CHANNELS, SOUND_BINS)).transpose(1, 2),
        )

    def _sounds_of(self, scenes: list[Scene], latents: torch.Tensor) -> torch.Tensor:
        """Return the audio latents of clips with these video latents. Each clip's audio is encoded once."""
        size = ((latents.shape[2] - 1) * TEMPORAL + 1, latents.shape[4] * SPATIAL, latents.shape[3] * SPATIAL)
        missing = [scene for scene in dict.fromkeys(scenes) if (scene, *size) not in self._heard]
        if missing:
            samples = torch.stack([hum(scene, *size) for scene in missing]).float().to(latents.device)
            made = self.sound.encode(samples)[:, :, : sound_length(size[0])]
            self._heard |= {(scene, *size): one for scene, one in zip(missing, made, strict=True)}
        return torch.stack([self._heard[(scene, *size)] for scene in scenes])

    def texts_for(self, prompts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the text embeddings of the two streams."""
        states, mask = self.text.encode(prompts)
        return self.connectors(states, mask)[:2]

    def save(self, folder: Path) -> None:
        """See `Networks`."""
        self.text.save(folder / "text_encoder")
        self.connectors.save_pretrained(folder / "connectors")
        self.transformer.save_pretrained(folder / "transformer")
        self.sound.save(folder)


def _normalise(self: torch.nn.RMSNorm, values: torch.Tensor) -> torch.Tensor:
    """Normalise in float32 although products run in bfloat16, because PyTorch has no fast norm for mixed dtypes."""
    return F.rms_norm(values.float(), self.normalized_shape, self.weight, self.eps).to(values.dtype)


def create_ltx(text_folder: Path, tokenizer_folder: Path, device: str) -> LtxNetworks:
    """See `Recipe.create`. The audio networks are in the folder beside the text encoder."""
    sound = SoundNetworks.load(text_folder.with_name("sound"), device)
    return LtxNetworks.create(GemmaText.load(text_folder, tokenizer_folder, device), sound, device)


def sound_length(num_frames: int) -> int:
    """Return the number of audio latents for `num_frames`."""
    config = TRANSFORMER
    return round(num_frames / FPS * config["audio_sampling_rate"] / config["audio_hop_length"] / 4)
