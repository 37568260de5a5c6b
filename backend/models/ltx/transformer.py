"""The LTX-2 transformer of the video and audio streams: diffusers' blocks with this project's attention. Up to four guidance
branches run together, as a batch. Each chip has all audio tokens, because a second of audio has only about 25 tokens. A first
image replaces the tokens of the first frame. Tokens of keyframes and of a control clip follow the video tokens. A video that
extends a clip starts with the frames and audio of the clip. The tokens of these images and clips have timestep 0. A control clip
with noise is an exception: its timestep is the video's timestep times `control_noise`. Therefore a stream's tokens have one to
three different timesteps. LTX-2.5's `keyframes_abs_pos_embedding` is loaded but not used, as in diffusers' pipelines. The
authors' own code adds it to the tokens of the first frame (Lightricks/LTX-2, `ltx_core/tools.py`,
`_first_frame_keyframes_mask`)."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers import LTX2VideoTransformer3DModel
from diffusers.models.transformers.transformer_ltx2 import LTX2AudioVideoRotaryPosEmbed

from backend.checkpoints.json_files import Config
from backend.models.common.modules import call
from backend.models.common.transformer import StackedTransformer
from backend.models.ltx.attention import RotaryInputs, Sort, StreamAttention, Tables
from backend.runtime.mesh import TOKENS, Layout, partition
from backend.runtime.torch_modules import call_module
from backend.runtime.work import Put, Work
from backend.schemas.extension import Appended
from backend.weights.stacked import StackedWeights

BLOCKS = "transformer_blocks."  # the prefix of the layers in the checkpoint
SORTS: dict[str, Sort] = {
    "attn1": "video",
    "audio_attn1": "sound",
    "attn2": "text",
    "audio_attn2": "text",
    "audio_to_video_attn": "sound to video",
    "video_to_audio_attn": "video to sound",
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Places:
    """The rotary tables of the video stream and of the audio stream. `video` and `sound` are for self-attention. `video_time` and
    `sound_time` are for attention between the streams, and use only positions in time."""

    video: Tables
    sound: Tables
    video_time: Tables
    sound_time: Tables


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Context:
    """The inputs that all steps share. Latents are clean. None means that the request has no such input.

    Attributes:
        text, sound_text: the connectors' embeddings, [B, T, D] and [B, T, D'].
        perturbed, isolated: [B], 1 for the branch of this name, 0 for the other branches.
        places: rotary tables.
        first_frame: [1, C, frames, H, W], latents of a first image, or of the clip that the video extends.
        keyframes: [1, C, keyframes, H, W], latents of keyframes.
        first_sound: [1, C, audio latents, mel bins], the audio of the clip that the video extends.
        is_heard: scalar, 1 if `first_sound` is used, 0 if the clip is silent and `first_sound` is only zeros.
        control: [1, C, F', H', W'], latents of a control clip.
        control_noise: scalar above 0, the clip's noise level divided by the video's noise level. None if the clip is clean."""

    text: jax.Array
    sound_text: jax.Array
    perturbed: jax.Array
    isolated: jax.Array
    places: Places
    first_frame: jax.Array | None
    keyframes: jax.Array | None
    first_sound: jax.Array | None
    is_heard: jax.Array | None
    control: jax.Array | None = None
    control_noise: jax.Array | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Modulations:
    """The modulations of the tokens (shifts, scales and gates), computed from the timesteps. Each array has one row for each
    timestep. The first row is for the step's own timestep. If some tokens come from images or clips, the second row is for
    timestep 0. If a control clip has noise, the third row is for the clip's timestep. Each layer adds its own tables to the
    modulations. `text` has the modulations of the prompt's keys for video and for audio, None if these keys do not depend on the
    timestep. `video_cross`, `sound_cross` and the gates modulate the attention to the other stream. In LTX-2.0 they have the same
    rows as `video` and `sound`. In later versions they have a single row, for the other stream's timestep."""

    video: jax.Array
    sound: jax.Array
    video_cross: jax.Array
    sound_cross: jax.Array
    video_gate: jax.Array
    sound_gate: jax.Array
    text: tuple[jax.Array, jax.Array] | None
    video_embedding: jax.Array
    sound_embedding: jax.Array


def layer_matrix_bytes(config: Config, itemsize: int) -> dict[str, int]:
    """Return the bytes of a layer's matrices by name. If every chip has a copy of a matrix, no step has to gather the matrix. The
    matrices whose copies save the most time come first."""
    width = config["num_attention_heads"] * config["attention_head_dim"]
    sound = config["audio_num_attention_heads"] * config["audio_attention_head_dim"]
    parts = ("to_q", "to_k", "to_v", "to_out.0")
    sizes = {f"attn1.{part}.weight": width * width for part in parts}
    sizes |= {f"attn2.{part}.weight": width * width for part in ("to_q", "to_out.0", "to_k", "to_v")}
    sizes |= {f"ff.net.{place}.weight": 4 * width * width for place in ("0.proj", "2")}
    sizes |= {f"audio_to_video_attn.{part}.weight": width * sound for part in ("to_q", "to_out.0")}
    return {name: size * itemsize for name, size in sizes.items()}


class Denoiser(StackedTransformer):
    """See `StackedTransformer`. A token is one position of the latents: patches have size 1."""

    _stacks = (BLOCKS,)
    _columns = ("to_q.weight", "to_k.weight", "to_v.weight", "net.0.proj.weight")
    _rows = ("to_out.0.weight", "net.2.weight")
    _patch = (1, 1, 1)
    # Steps are faster without `cuts_copies` (see `Layout.gather`). For 704p on v6e:2x4, which is 1,792 tokens per chip, check-tpu
    # predicts 0.182 s per step without `cuts_copies` and 0.207 s with `cuts_copies`.
    _cuts_copies = False

    def __init__(self, config: Config, layout: Layout, crosses_timesteps: bool) -> None:
        with torch.device("meta"):
            super().__init__(LTX2VideoTransformer3DModel.from_config(dict(config)), layout)
        self._block, self._crosses_timesteps = self._model.transformer_blocks[0], crosses_timesteps
        self._processors = {name: StreamAttention(layout, sort) for name, sort in SORTS.items()}
        for name, processor in self._processors.items():
            getattr(self._block, name).set_processor(processor)

    def places(self, latent_shape: tuple[int, ...], num_sound: int, fps: float, appended: Appended) -> Work:
        """Compute the rotary tables for video latents of this shape, B C F H W, and `num_sound` audio latents. Yields work. The
        tokens of keyframes and of a control clip, which `appended` describes, follow the video tokens. A position is (time,
        height, width), divided by (20 s, 2048 pixels, 2048 pixels). Every head has its own angles. Angles are computed in
        float64, because the checkpoints need this precision (diffusers, `LTX2AudioVideoRotaryPosEmbed`, "split"). Attention
        between video and audio uses only the time."""
        padded = self.padded_tokens(latent_shape, room=appended.num_tokens)
        _, _, frames, height, width = latent_shape
        model, cpu = self._model, torch.device("cpu")
        # Coordinates are the start and end of each token in time, height and width, [1, 3, tokens, 2].
        with cpu, torch.no_grad():
            pieces = [model.rope.prepare_video_coords(1, frames, height, width, cpu, fps=fps)]
            for frame in appended.frames:  # a keyframe lasts one pixel frame; source: diffusers, `_prepare_keyframe_coords`
                picture = model.rope.prepare_video_coords(1, 1, height, width, cpu, fps=1.0)
                picture[:, 0] = (picture[:, 0] + frame) / fps
                pieces.append(picture)
            if appended.control:
                # A token of the clip covers as much space as `downscale` x `downscale` tokens of the video. Source: diffusers,
                # `LTX2InContextPipeline._encode_reference_conditions`.
                clip = model.rope.prepare_video_coords(1, *appended.control, cpu, fps=fps)
                clip[:, 1:] *= appended.downscale
                pieces.append(clip)
            shown, heard = torch.cat(pieces, dim=2), model.audio_rope.prepare_audio_coords(1, num_sound, cpu)
            video = _rotary_tables(model.rope, shown, padded)
            sound = _rotary_tables(model.audio_rope, heard)
            video_time = _rotary_tables(model.cross_attn_rope, shown[:, :1], padded)
            sound_time = _rotary_tables(model.cross_attn_audio_rope, heard[:, :1])
        spread, whole = (self._layout.sharding(partition(axis, "heads")) for axis in ("tokens", None))
        video, video_time = yield Put((video, video_time), spread)
        sound, sound_time = yield Put((sound, sound_time), whole)
        return Places(video=video, sound=sound, video_time=video_time, sound_time=sound_time)

    def embed_text(self, weights: StackedWeights, text: jax.Array, sound_text: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the text embeddings that the layers read. In LTX-2.0 they are a projection of the connectors' embeddings."""
        if not self._model.config.use_prompt_embeddings:
            return text, sound_text
        own = self._call_outer("caption_projection", weights, text)
        return own, self._call_outer("audio_caption_projection", weights, sound_text)

    def velocities(
        self, weights: StackedWeights, video: jax.Array, sound: jax.Array, timesteps: tuple[jax.Array, ...], context: Context
    ) -> tuple[jax.Array, jax.Array]:
        """Predict the velocities (noise - data) of `video` [1, C, S] and `sound` [1, C, L, M] in each guidance branch. Returns
        the velocities of the video [branches, C, S] and of the audio [branches, C, L, M], both float32. `timesteps` are two
        scalars from 0 to 1000, for video and audio. `video` has the tokens of all frames, including a first image, then of
        keyframes, then of a control clip."""
        dtype, branches = weights.outer["proj_out.weight"].dtype, len(context.text)
        num_tokens = video.shape[2]
        padded = num_tokens + -num_tokens % self._layout.token_multiple
        for processor in self._processors.values():
            processor.num_video = num_tokens
        tokens = self._call_outer("proj_in", weights, jnp.moveaxis(video, 1, 2).astype(dtype))
        tokens = jnp.pad(tokens, ((0, 0), (0, padded - num_tokens), (0, 0)))
        sound_tokens = sound.swapaxes(1, 2).reshape(len(sound), sound.shape[2], -1)
        sound_tokens = self._call_outer("audio_proj_in", weights, sound_tokens.astype(dtype))
        tokens, sound_tokens = (jnp.broadcast_to(array, (branches, *array.shape[1:])) for array in (tokens, sound_tokens))
        sound_levels = None
        if context.first_sound is not None:  # the latents of the clip that the video extends have timestep 0
            is_first = jnp.arange(sound.shape[2]) < context.first_sound.shape[2]
            sound_levels = is_first & keeps_first_sound(context)
        video_rows, levels = _video_levels(timesteps[0], context, num_tokens, padded)
        own = timesteps[1]
        sound_rows = own[None] if sound_levels is None else jnp.stack([own, jnp.zeros_like(own)])
        times = self._compute_modulations(weights, video_rows, sound_rows, dtype)
        run = functools.partial(self._run_layer, times=times, levels=levels, sound_levels=sound_levels, context=context)
        layers = (weights.stacks[BLOCKS], jnp.arange(self._model.config.num_layers))
        start = self._layout.constrain(tokens, TOKENS), self._layout.constrain(sound_tokens, partition("branches"))
        (tokens, sound_tokens), _ = jax.lax.scan(lambda streams, layer: (run(streams, layer), None), start, layers)
        spread = _select_rows(times.video_embedding, levels)
        velocity = jnp.moveaxis(self._finish(weights, "", tokens, spread)[:, :num_tokens], 1, 2)
        out = self._finish(weights, "audio_", sound_tokens, _select_rows(times.sound_embedding, sound_levels))
        return velocity, out.reshape(branches, sound.shape[2], *sound.shape[1::2]).swapaxes(1, 2)

    def _compute_modulations(
        self, weights: StackedWeights, rows: jax.Array, heard_rows: jax.Array, dtype: jnp.dtype
    ) -> _Modulations:
        """Compute the modulations for the timesteps of the video (`rows`) and of the audio (`heard_rows`)."""
        own, sound_tokens = rows[:1], heard_rows[:1]
        run = functools.partial(_embed_time, dtype=getattr(torch, jnp.dtype(dtype).name))

        def embed(name: str, times: jax.Array) -> Any:
            """Return the modulations [N, K * D], K shifts, scales and gates, and the embeddings [N, D] of timesteps [N]."""
            return self._call_outer(name, weights, times, function=run)

        scale = self._model.config.cross_attn_timestep_scale_multiplier / self._model.config.timestep_scale_multiplier
        (video, video_embedding), (sound, sound_embedding) = embed("time_embed", rows), embed("audio_time_embed", heard_rows)
        text = None
        if self._model.prompt_modulation and self._model.config.use_prompt_adaln_single:
            text = embed("prompt_adaln", own)[0], embed("audio_prompt_adaln", sound_tokens)[0]
        # The modulation of a token's attention to the other stream reads the other stream's timestep. In LTX-2.0 it reads the
        # token's own timestep instead.
        video_level, sound_level = (sound_tokens, own) if self._crosses_timesteps else (rows, heard_rows)
        return _Modulations(
            video=video,
            sound=sound,
            video_cross=embed("av_cross_attn_video_scale_shift", video_level)[0],
            sound_cross=embed("av_cross_attn_audio_scale_shift", sound_level)[0],
            video_gate=embed("av_cross_attn_video_a2v_gate", video_level * scale)[0],
            sound_gate=embed("av_cross_attn_audio_v2a_gate", sound_level * scale)[0],
            text=text,
            video_embedding=video_embedding,
            sound_embedding=sound_embedding,
        )

    def _run_layer(
        self,
        streams: tuple[jax.Array, jax.Array],
        layer: Any,
        times: _Modulations,
        levels: np.ndarray | None,
        sound_levels: jax.Array | None,
        context: Context,
    ) -> tuple[jax.Array, jax.Array]:
        (block, index), (tokens, sound_tokens), places = layer, streams, context.places
        branches = len(tokens)
        # A network with fewer layers than `PERTURBED_LAYER` uses its last layer. -1: no branch leaves out the self-attention.
        perturbed_layer = min(PERTURBED_LAYER, self._model.config.num_layers - 1) if self._model.config.perturbed_attn else -1
        own = jnp.where(index == perturbed_layer, 1 - context.perturbed, 1)[:, None, None]
        other = (1 - context.isolated)[:, None, None]

        def whole(rows: jax.Array, levels: Any = levels) -> jax.Array:
            spread = _select_rows(rows, levels if len(rows) > 1 else None)
            return jnp.broadcast_to(spread, (branches, *spread.shape[1:]))

        arguments = dict(
            hidden_states=tokens,
            audio_hidden_states=sound_tokens,
            encoder_hidden_states=context.text,
            audio_encoder_hidden_states=context.sound_text,
            temb=whole(times.video),
            temb_audio=whole(times.sound, sound_levels),
            temb_ca_scale_shift=whole(times.video_cross),
            temb_ca_audio_scale_shift=whole(times.sound_cross, sound_levels),
            temb_ca_gate=whole(times.video_gate),
            temb_ca_audio_gate=whole(times.sound_gate, sound_levels),
            temb_prompt=None if times.text is None else whole(times.text[0]),
            temb_prompt_audio=None if times.text is None else whole(times.text[1]),
            video_rotary_emb=RotaryInputs(query=places.video, key=places.video, keeps=own),
            audio_rotary_emb=RotaryInputs(query=places.sound, key=places.sound, keeps=own),
            ca_video_rotary_emb=RotaryInputs(query=places.video_time, key=places.sound_time, keeps=other),
            ca_audio_rotary_emb=RotaryInputs(query=places.sound_time, key=places.video_time, keeps=other),
        )
        tokens, sound_tokens = call_module(
            self._block, self._gather_layer(block), lambda block, arguments: block(**arguments), arguments
        )
        return self._layout.constrain(tokens, TOKENS), self._layout.constrain(sound_tokens, partition("branches"))

    def _finish(self, weights: StackedWeights, prefix: str, hidden: jax.Array, embedding: jax.Array) -> jax.Array:
        table = weights.outer[f"{prefix}scale_shift_table"]
        shift, scale = table[0] + embedding, table[1] + embedding
        normal = hidden.astype(jnp.float32)
        normal = normal - normal.mean(-1, keepdims=True)
        normal = normal * jax.lax.rsqrt(jnp.square(normal).mean(-1, keepdims=True) + self._model.norm_out.eps)
        out = normal.astype(hidden.dtype) * (1 + scale) + shift
        return self._call_outer(f"{prefix}proj_out", weights, out).astype(jnp.float32)


# The index of the layer without self-attention in the perturbed branch. Source: diffusers, LTX2Pipeline,
# spatio_temporal_guidance_blocks.
PERTURBED_LAYER = 28


def _embed_time(module: torch.nn.Module, times: torch.Tensor, dtype: torch.dtype) -> Any:
    return call(functools.partial(module, batch_size=len(times), hidden_dtype=dtype), times)


def _video_levels(timestep: jax.Array, context: Context, num_tokens: int, padded: int) -> tuple[jax.Array, np.ndarray | None]:
    """Return the different timesteps of video tokens, one to three numbers, and the index of each token's timestep, [padded]. The
    timesteps are the step's own timestep, 0 for latents of images and clips, and the timestep of a control clip with noise. The
    result has None for the indices if no token comes from an image or clip."""
    given = (context.first_frame, context.keyframes, context.control)
    if all(latents is None for latents in given):
        return timestep[None], None
    first, pictures, control = (0 if latents is None else math.prod(latents.shape[2:]) for latents in given)
    levels = np.zeros(padded, np.int32)
    levels[:first] = levels[num_tokens - pictures - control :] = 1
    noisy = []
    if context.control_noise is not None:
        levels[num_tokens - control : num_tokens] = 2
        noisy = [timestep * context.control_noise]
    return jnp.stack([timestep, jnp.zeros_like(timestep), *noisy]), levels


def keeps_first_sound(context: Context) -> jax.Array:
    """Return a boolean scalar: whether the video keeps the audio of the clip that it extends."""
    assert context.is_heard is not None, "`is_heard` is given with `first_sound`"
    return context.is_heard > 0


def _rotary_tables(rope: LTX2AudioVideoRotaryPosEmbed, coordinates: torch.Tensor, padded: int | None = None) -> Tables:
    tables = [table[0].transpose(0, 1).flatten(1).float().numpy() for table in rope(coordinates)]
    rows = 0 if padded is None else padded - len(tables[0])
    cosine, sine = (np.pad(table, ((0, rows), (0, 0))) for table in tables)
    return cosine, sine


def _select_rows(rows: jax.Array, levels: np.ndarray | jax.Array | None) -> jax.Array:
    """Select a row of `rows` [N, ...] for each token: [1, S, ...]. `levels` [S] are the indices of the rows. Without `levels`,
    all tokens share the first row: [1, 1, ...]."""
    if levels is None:
        return rows[None, :1]
    spread = rows[0]
    for level in range(1, len(rows)):
        spread = jnp.where((levels == level)[:, None], rows[level], spread)
    return spread[None]
