"""Recognises Matrix-Game 2.0: causal Wan that goes on from a picture and does what keyboard and mouse say. Reads no file.

The transformer's config.json has Wan's entries, those of `causal_wan.family` about blocks and window, and `action_config`, which
describes the action module of the first blocks. There is no text: cross-attention sees the picture through CLIP. What a key means
follows from how many there are, because no configuration says it.

Source: SkyworkAI/Matrix-Game, Matrix-Game-2/utils/conditions.py and configs/distilled_model (keys, mouse, entries);
hao-ai-lab/FastVideo, fastvideo/configs/models/dits/matrixgame2.py (the layout of FastVideo/Matrix-Game-2.0-*-Diffusers).
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from backend.checkpoints.json_files import AGAIN
from backend.chips import StepFlops
from backend.errors import ModelError, RequestError
from backend.models.causal_wan.spec import BLOCK, SINK, TRAINED, WINDOW, CausalWanFamily, CausalWanKind, check_window
from backend.models.common.parts import channels_refusal, check_classes, check_parts, index_of, renamed, width_of
from backend.models.common.spec import Face
from backend.models.spec import Configs, refusal
from backend.models.wan.spec import AUTOENCODER, TEXT_TOKENS, transformer_flops, vae_scales
from backend.schemas.prompt_cues import AND
from backend.schemas.settings import VideoSettings

PIPELINES = ("MatrixGameCausalDMDPipeline", "MatrixGame2CausalDMDPipeline")  # FastVideo's, before and after it was renamed
TRANSFORMERS = ("CausalMatrixGameWanModel", "CausalMatrixGame2WanModel")
SUPPORTED = "Matrix-Game 2.0 (distilled), as FastVideo lays it out"
TRAINED_FRAMES = 15  # latent frames of the 57 frames of a clip in training
USUAL_WINDOWS = {2: 4, 4: 6, 7: 6}  # by how many keys there are, where the entry is missing
ACTIONS = "actions."  # the prefix of the action modules, which the checkpoint keeps inside its blocks
NEEDED_ENTRIES = {
    "transformer": ("in_channels", "num_layers", "num_attention_heads", "attention_head_dim", "ffn_dim", "action_config"),
    "vae": ("z_dim",),
    "image_encoder": ("hidden_size", "image_size", "patch_size"),
}

STAY = "stay"
KEYS = {  # by how many there are; "stay" is a key of its own in the last game
    2: ("forward", "back"),
    4: ("forward", "back", "left", "right"),
    7: (STAY, "jump", "slide", "turn-left", "turn-right", "left", "right"),
}
LOOK_STEP = 0.1  # the mouse's turn in one frame, up or down and to the sides, as the model was trained
LOOKS = {
    "look-up": (LOOK_STEP, 0.0),
    "look-down": (-LOOK_STEP, 0.0),
    "look-left": (0.0, -LOOK_STEP),
    "look-right": (0.0, LOOK_STEP),
}

CHECKPOINT_NAMES = (  # FastVideo's name -> diffusers'; names of diffusers stay as they are
    (r"^patch_embedding\.proj\.", "patch_embedding."),
    (r"^condition_embedder\.time_embedder\.mlp\.fc_in\.", "condition_embedder.time_embedder.linear_1."),
    (r"^condition_embedder\.time_embedder\.mlp\.fc_out\.", "condition_embedder.time_embedder.linear_2."),
    (r"^condition_embedder\.time_modulation\.linear\.", "condition_embedder.time_proj."),
    (r"^condition_embedder\.image_embedder\.ff\.fc_in\.", "condition_embedder.image_embedder.ff.net.0.proj."),
    (r"^condition_embedder\.image_embedder\.ff\.fc_out\.", "condition_embedder.image_embedder.ff.net.2."),
    (r"^(blocks\.\d+)\.(to_[qkv]|norm_[qk])\.", r"\1.attn1.\2."),
    (r"^(blocks\.\d+)\.to_out\.", r"\1.attn1.to_out.0."),
    (r"^(blocks\.\d+\.attn2)\.to_out\.(?!0\.)", r"\1.to_out.0."),
    (r"^(blocks\.\d+)\.self_attn_residual_norm\.norm\.", r"\1.norm2."),
    (r"^(blocks\.\d+)\.ffn\.fc_in\.", r"\1.ffn.net.0.proj."),
    (r"^(blocks\.\d+)\.ffn\.fc_out\.", r"\1.ffn.net.2."),
    (r"^blocks\.(\d+)\.action_model\.", rf"{ACTIONS}\1."),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionShape:
    """An action module's sizes. The first `layers` blocks have one. `heads` attend in channels `width` to what is done; each of
    `keys` is embedded in `key_width` channels. A latent frame stands for `stride` pixel frames, and sees what is done in the
    `reach` pixel frames before its last one. Of a head's channels `time_width` are turned by the frame's number, at rates of
    `theta`. `mouse_width` are the mouse's numbers in a frame, 0 without a mouse."""

    layers: int
    heads: int
    width: int
    keys: int
    key_width: int
    mouse_width: int
    stride: int
    reach: int
    time_width: int
    theta: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionWanKind(CausalWanKind):
    """A model of which `shape` describes the action modules."""

    shape: ActionShape

    @property
    def actions(self) -> tuple[str, ...]:
        """The words of its actions; several may be said together, with `+` between them."""
        keys = tuple(key for key in KEYS[self.shape.keys] if key != STAY)
        return (*keys, *(LOOKS if self.shape.mouse_width else ()), STAY)

    def encode_action(self, action: str | None) -> tuple[list[float], list[float]]:
        """The keys, 1 where one is held, and the mouse's numbers, none without a mouse. None is "stay". Raises: RequestError."""
        words = (action or STAY).split(AND)
        if not set(words) <= set(self.actions):
            known = ", ".join(self.actions)
            raise RequestError(f"action={(action or '')[:40]!r}", f"must be of {known}, joined by {AND}", "choose others")
        moves = [LOOKS[word] for word in words if word in LOOKS]
        mouse = [sum(numbers) for numbers in zip(*moves, strict=True)] if moves else [0.0] * self.shape.mouse_width
        return [float(key in words) for key in KEYS[self.shape.keys]], mouse


class ActionWanFamily(CausalWanFamily):
    """Matrix-Game 2.0. See `backend.models.spec.Family`."""

    name = "matrix-game"
    supports = SUPPORTED
    pipelines = PIPELINES
    transformers = TRANSFORMERS
    body = "backend.models.causal_wan.action_model:ActionWanModel"
    completed = Face.completed  # unlike causal Wan, which has files of its own

    def _kind(self, index: Mapping[str, Any], configs: Configs) -> ActionWanKind:
        _check_networks(configs)
        kind = _make_kind(configs)
        check_window(kind)
        return kind

    def distinctive_shapes(self, configs: Configs, part: str) -> dict[str, tuple[int, ...]]:
        """Shapes of tensors that FastVideo and diffusers name alike."""
        if part != "transformer":
            return super().distinctive_shapes(configs, part)
        config, shape = configs[part], read_action_shape(configs[part])
        width, last = width_of(config), config["num_layers"] - 1
        return {
            f"blocks.{last}.attn2.to_q.weight": (width, width),
            f"blocks.{shape.layers - 1}.action_model.keyboard_embed.0.weight": (shape.key_width, shape.keys),
        }

    def step_flops(self, configs: Configs, request: VideoSettings, branches: int) -> StepFlops:
        """Of one block, whose tokens see all of a full window. The action modules' attention to a few frames is left out."""
        kind, config, picture = _make_kind(configs), configs["transformer"], configs["image_encoder"]
        geometry = request.geometry()
        frame = geometry.num_tokens // geometry.num_latent_frames
        queries = min(kind.chunk, geometry.num_latent_frames) * frame
        plain = transformer_flops(config, queries, kind.window * frame, branches)
        width, inner, layers = width_of(config), kind.shape.width, kind.shape.layers * branches
        of_keyboard = 2 * width * inner
        of_mouse = 2 * width * inner + 4 * inner * inner if kind.shape.mouse_width else 0
        no_text = TEXT_TOKENS - (picture["image_size"] // picture["patch_size"]) ** 2 - 1
        added = 2 * queries * (of_keyboard + of_mouse) * layers - 4 * queries * no_text * width * config["num_layers"] * branches
        return dataclasses.replace(plain, matmul=plain.matmul + added)

    def original_name(self, stem: str) -> str:
        """A module's name in the makers' checkpoints."""
        return super().original_name(re.sub(rf"^{re.escape(ACTIONS)}(\d+)\.", r"blocks.\1.action_model.", stem))


ACTION_WAN = ActionWanFamily()


def diffusers_name(name: str) -> str:
    """A tensor's name as diffusers' modules have it, or within `ACTIONS`, from the one in a file."""
    return renamed(name, CHECKPOINT_NAMES)


def read_action_shape(transformer: Mapping[str, Any]) -> ActionShape:
    """The action modules' sizes. Raises: ModelError for entries that other networks have."""
    given = transformer["action_config"]
    missing = [name for name in _needed_entries(given) if name not in given]
    if missing:
        raise ModelError(f"transformer/config.json does not say action_config.{missing[0]}:", "an action module needs it", AGAIN)
    stride, blocks, has_mouse = given["vae_time_compression_ratio"], list(given["blocks"]), given.get("enable_mouse", True)
    shape = ActionShape(
        layers=len(blocks),
        heads=given["heads_num"],
        width=given["keyboard_hidden_dim"],
        keys=given["keyboard_dim_in"],
        key_width=given["hidden_size"],
        mouse_width=given["mouse_dim_in"] if has_mouse else 0,
        stride=stride,
        reach=stride * given["windows_size"],
        time_width=given["rope_dim_list"][0],
        theta=given["rope_theta"],
    )
    _check_shape(shape, given, transformer, blocks)
    return shape


def _needed_entries(given: Mapping[str, Any]) -> Sequence[str]:
    always = ("blocks", "heads_num", "hidden_size", "keyboard_dim_in", "keyboard_hidden_dim", "rope_dim_list", "rope_theta",
              "vae_time_compression_ratio", "windows_size")  # fmt: skip
    of_mouse = ("mouse_dim_in", "mouse_hidden_dim", "mouse_qk_dim_list")
    return (*always, *of_mouse) if given.get("enable_mouse", True) else always


def _check_shape(shape: ActionShape, given: Mapping[str, Any], transformer: Mapping[str, Any], blocks: list[int]) -> None:
    """Raises: ModelError for the first of what we do not run."""
    head_width, channels = shape.width // shape.heads, list(given["rope_dim_list"])
    mouse_is_alike = not shape.mouse_width or (
        shape.mouse_width == len(LOOKS["look-up"])
        and given["mouse_hidden_dim"] == shape.width
        and list(given["mouse_qk_dim_list"]) == channels
    )
    wrong = [
        name
        for name, fits in {
            f"blocks={blocks}": blocks == list(range(shape.layers)) and 0 < shape.layers <= transformer["num_layers"],
            f"keyboard_dim_in={shape.keys}": shape.keys in KEYS,
            "enable_keyboard=false": given.get("enable_keyboard", True),
            "qk_norm=false": given.get("qk_norm", True),
            "qkv_bias=true": not given.get("qkv_bias", False),
            f"rope_dim_list={channels}": sum(channels) == head_width and shape.time_width % 2 == 0,
            "a mouse of another shape": mouse_is_alike,
            f"img_hidden_size={given.get('img_hidden_size')}": given.get("img_hidden_size") in (None, width_of(transformer)),
        }.items()
        if not fits
    ]
    if wrong:
        raise refusal(f"its action_config says {wrong[0]}", [SUPPORTED])


def _check_networks(configs: Configs) -> None:
    """Raises: ModelError if a part or an entry of its configuration is missing, or a network is of another class."""
    check_parts(index_of(configs), configs, NEEDED_ENTRIES, "a whole checkpoint")
    check_classes(configs, {"transformer": TRANSFORMERS, "vae": (AUTOENCODER,)}, SUPPORTED)
    latents = configs["vae"]["z_dim"]
    if configs["transformer"]["in_channels"] != 2 * latents + vae_scales(configs)[1]:
        raise channels_refusal(configs, latents, SUPPORTED)


def _make_kind(configs: Configs) -> ActionWanKind:
    transformer = configs["transformer"]
    if transformer.get(SINK, 0):
        raise refusal(f"it keeps the first {transformer[SINK]} frames in its window", [SUPPORTED])
    shape, trained = read_action_shape(transformer), transformer.get(TRAINED, TRAINED_FRAMES)
    window = transformer.get(WINDOW, USUAL_WINDOWS[shape.keys])
    return ActionWanKind(
        name="matrix-game",
        tasks=("i2v",),
        conditioning="channels",
        has_image_encoder=True,
        takes={"image": "must"},
        scales=vae_scales(configs),
        chunk=transformer.get(BLOCK, 3),
        window=trained if window < 0 else window,
        sink=0,
        trained=trained,
        from_inputs=frozenset({"image_seen", "image_channels"}),
        shape=shape,
    )
