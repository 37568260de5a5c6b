"""The positions of LTX-2's tokens in time and space, and their rotary tables, computed on the host.

A position is (time, height, width), divided by (20 s, 2048 pixels, 2048 pixels). Every head has its own angles. Angles are
computed in float64, because the checkpoints need this precision (diffusers, `LTX2AudioVideoRotaryPosEmbed`, "split"). Attention
between video and audio uses only the time.
"""

import dataclasses

import jax
import numpy as np
import torch
from diffusers.models.transformers.transformer_ltx2 import LTX2AudioVideoRotaryPosEmbed, LTX2VideoTransformer3DModel

from backend.schemas.extension import Appended

Tables = tuple[jax.Array | np.ndarray, jax.Array | np.ndarray]
"""Cosine and sine [S, H * D / 2], float32. They rotate the first half of each head's channels with the second half."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Places:
    """The rotary tables of the video stream and of the audio stream.

    `video` and `sound` are for self-attention. `video_time` and `sound_time` are for attention between the streams, and use only
    positions in time.
    """

    video: Tables
    sound: Tables
    video_time: Tables
    sound_time: Tables


def make_places(
    model: LTX2VideoTransformer3DModel,
    size: tuple[int, int, int],
    num_sound: int,
    fps: float,
    appended: Appended,
    padded: int,
) -> Places:
    """Compute the tables for video latents of `size` (F, H, W) and `num_sound` audio latents.

    The tokens of keyframes and of a control clip, which `appended` describes, follow the video tokens. `padded` is the number of
    video tokens and appended tokens together, with padding.
    """
    with torch.device("cpu"), torch.no_grad():
        video = model.rope.prepare_video_coords(1, *size, torch.device("cpu"), fps=fps)
        after = [_keyframe_coordinates(model, size, fps, frame) for frame in appended.frames]
        if appended.control:
            after.append(_control_coordinates(model, appended.control, fps, appended.downscale))
        video = torch.cat([video, *after], dim=2)
        sound = model.audio_rope.prepare_audio_coords(1, num_sound, torch.device("cpu"))
        return Places(
            video=_rotary_tables(model.rope, video, padded),
            sound=_rotary_tables(model.audio_rope, sound),
            video_time=_rotary_tables(model.cross_attn_rope, video[:, :1], padded),
            sound_time=_rotary_tables(model.cross_attn_audio_rope, sound[:, :1]),
        )


def _keyframe_coordinates(model: LTX2VideoTransformer3DModel, size: tuple[int, int, int], fps: float, frame: int) -> torch.Tensor:
    """Return the start and end of a keyframe's tokens in time, height and width, [1, 3, H * W, 2].

    A keyframe lasts one pixel frame.

    Source: diffusers, `LTX2ConditionPipeline._prepare_keyframe_coords`.
    """
    picture = model.rope.prepare_video_coords(1, 1, *size[1:], torch.device("cpu"), fps=1.0)
    picture[:, 0] = (picture[:, 0] + frame) / fps
    return picture


def _control_coordinates(
    model: LTX2VideoTransformer3DModel, size: tuple[int, int, int], fps: float, downscale: int
) -> torch.Tensor:
    """Return the start and end of a control clip's tokens in time, height and width, [1, 3, F * H * W, 2].

    The coordinates are scaled to the video's size: a token of the clip covers as much space as `downscale` x `downscale` tokens
    of the video.

    Source: diffusers, `LTX2InContextPipeline._encode_reference_conditions`.
    """
    clip = model.rope.prepare_video_coords(1, *size, torch.device("cpu"), fps=fps)
    clip[:, 1:] *= downscale
    return clip


def _rotary_tables(rope: LTX2AudioVideoRotaryPosEmbed, coordinates: torch.Tensor, padded: int | None = None) -> Tables:
    tables = [table[0].transpose(0, 1).flatten(1).float().numpy() for table in rope(coordinates)]
    rows = 0 if padded is None else padded - len(tables[0])
    cosine, sine = (np.pad(table, ((0, rows), (0, 0))) for table in tables)
    return cosine, sine
