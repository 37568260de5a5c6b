"""Conversion of the original authors' HunyuanVideo 1.5 transformer files to diffusers' tensor names and arrangement. Source:
diffusers, scripts/convert_hunyuan_video1_5_to_diffusers.py."""

import dataclasses
import math
import re
from collections.abc import Mapping

from backend.checkpoints.json_files import short_path
from backend.checkpoints.tensors import TensorPlace
from backend.errors import ModelError
from backend.models.common.parts import apply_patterns

FILE_NAMES = (  # the authors' name of a tensor -> diffusers' name
    (r"^time_in\.mlp\.", "time_embed.timestep_embedder.mlp."), (r"^time_r_in\.mlp\.", "time_embed.timestep_embedder_r.mlp."),
    (r"^txt_in\.t_embedder\.mlp\.", "context_embedder.time_text_embed.timestep_embedder.mlp."),
    (r"\.mlp\.0\.", ".linear_1."), (r"\.mlp\.2\.", ".linear_2."),
    (r"^txt_in\.c_embedder\.", "context_embedder.time_text_embed.text_embedder."),
    (r"^txt_in\.input_embedder\.", "context_embedder.proj_in."),
    (r"^txt_in\.individual_token_refiner\.blocks\.", "context_embedder.token_refiner.refiner_blocks."),
    (r"\.self_attn_(q|k|v)\.", r".attn.to_\1."), (r"\.self_attn_proj\.", ".attn.to_out.0."),
    (r"^(context_embedder\..*)\.mlp\.fc1\.", r"\1.ff.net.0.proj."), (r"^(context_embedder\..*)\.mlp\.fc2\.", r"\1.ff.net.2."),
    (r"^(context_embedder\..*)\.adaLN_modulation\.1\.", r"\1.norm_out.linear."),
    (r"^byt5_in\.fc", "context_embedder_2.linear_"), (r"^byt5_in\.layernorm\.", "context_embedder_2.norm."),
    (r"^vision_in\.proj\.0\.", "image_embedder.norm_in."), (r"^vision_in\.proj\.1\.", "image_embedder.linear_1."),
    (r"^vision_in\.proj\.3\.", "image_embedder.linear_2."), (r"^vision_in\.proj\.4\.", "image_embedder.norm_out."),
    (r"^img_in\.", "x_embedder."), (r"^cond_type_embedding\.", "cond_type_embed."), (r"^double_blocks\.", "transformer_blocks."),
    (r"\.img_mod\.", ".norm1."), (r"\.txt_mod\.", ".norm1_context."),
    (r"\.img_attn_(q|k)_norm\.", r".attn.norm_\1."), (r"\.txt_attn_(q|k)_norm\.", r".attn.norm_added_\1."),
    (r"\.img_attn_(q|k|v)\.", r".attn.to_\1."), (r"\.txt_attn_(q|k|v)\.", r".attn.add_\1_proj."),
    (r"\.img_attn_proj\.", ".attn.to_out.0."), (r"\.txt_attn_proj\.", ".attn.to_add_out."),
    (r"\.img_mlp\.fc1\.", ".ff.net.0.proj."), (r"\.img_mlp\.fc2\.", ".ff.net.2."),
    (r"\.txt_mlp\.fc1\.", ".ff_context.net.0.proj."), (r"\.txt_mlp\.fc2\.", ".ff_context.net.2."),
    (r"^final_layer\.linear\.", "proj_out."), (r"^final_layer\.adaLN_modulation\.1\.", "norm_out.linear."),
)  # fmt: skip
_QUERY_KEY_VALUE = re.compile(r"(.*\.self_attn_)qkv(\..*)")  # query, key and value of the token refiner in one matrix
_SWAPPED = "norm_out.linear."  # the authors store the shift before the scale, diffusers the scale first


def convert_tensors(places: Mapping[str, TensorPlace]) -> dict[str, TensorPlace]:
    """Convert the tensors of a file to diffusers' names and arrangement. Tensors with diffusers' names stay unchanged. Raises:
    ModelError if a tensor that joins query, key and value cannot be divided."""
    converted = {}
    for name, place in places.items():
        if joined := _QUERY_KEY_VALUE.fullmatch(name):
            named = {f"{joined[1]}{part}{joined[2]}": _take_third(place, index) for index, part in enumerate("qkv")}
        else:
            named = {name: place}
        for own, one in named.items():
            other = apply_patterns(own, FILE_NAMES)
            is_swapped = other != own and other.startswith(_SWAPPED)
            converted[other] = dataclasses.replace(one, swaps_halves=True) if is_swapped else one
    return converted


def _take_third(place: TensorPlace, index: int) -> TensorPlace:
    """Return the place in the file of one third of a tensor's rows, and of the scales of these rows."""
    if not place.shape or place.shape[0] % 3 or place.scale_block is not None:
        raise ModelError(
            f"{short_path(place.path)} has a joined query, key and value as {place.dtype} {list(place.shape)}:",
            "the number of rows must be divisible by three, and numbers of 8 bits need one scale for all rows or for each row",
            "use the same model in bfloat16",
        )
    size, scale = place.num_bytes // 3, place.scale
    if scale is not None and math.prod(scale.shape) > 1:  # one scale for each row, not one for the whole tensor
        scale = _take_third(scale, index)
    start = place.start + index * size
    shape = (place.shape[0] // 3, *place.shape[1:])
    return dataclasses.replace(place, shape=shape, start=start, end=start + size, scale=scale)
