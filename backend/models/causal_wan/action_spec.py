"""Recognise Matrix-Game 2.0 by its configurations: a causal Wan model that continues an image, steered by keyboard and mouse.

The transformer's config.json has the entries of causal Wan, and `action_config` for the action modules of the first layers. The
model reads no text. Its cross-attention attends to CLIP's tokens of the image.

Source: SkyworkAI/Matrix-Game, Matrix-Game-2/utils/conditions.py and configs/distilled_model (keys, mouse, entries);
hao-ai-lab/FastVideo, fastvideo/configs/models/dits/matrixgame2.py (the layout of FastVideo/Matrix-Game-2.0-*-Diffusers).
"""

import dataclasses
import re

from backend.checkpoints.json_files import AGAIN, Config
from backend.chips import StepFlops
from backend.errors import ModelError, RequestError
from backend.models.causal_wan.spec import BLOCK, SINK, TRAINED, WINDOW, CausalWanSpec, check_window
from backend.models.common.parts import apply_patterns, channel_mismatch, check_classes, check_parts, transformer_width
from backend.models.spec import Configs, unsupported_checkpoint
from backend.models.wan.spec import AUTOENCODER, TEXT_TOKENS, WanFamily, transformer_flops, vae_scales
from backend.schemas.prompt_cues import AND
from backend.schemas.settings import VideoSettings

PIPELINES = ("MatrixGameCausalDMDPipeline", "MatrixGame2CausalDMDPipeline")  # FastVideo's old and new name of the pipeline
TRANSFORMERS = ("CausalMatrixGameWanModel", "CausalMatrixGame2WanModel")
SUPPORTED = "Matrix-Game 2.0 (distilled), in FastVideo's layout"
TRAINED_FRAMES = 15  # default length of the longest attention window in training, in latent frames: a clip of 57 pixel frames
# Number of keyboard keys -> length of the attention window in latent frames, used if config.json has no entry for the window.
USUAL_WINDOWS = {2: 4, 4: 6, 7: 6}
ACTIONS = "actions."  # prefix of the action modules' weights in this project; checkpoints have these weights inside the layers
ACTION_ENTRIES = ("blocks", "heads_num", "hidden_size", "keyboard_dim_in", "keyboard_hidden_dim", "rope_dim_list", "rope_theta",
                  "vae_time_compression_ratio", "windows_size")  # fmt: skip
MOUSE_ENTRIES = ("mouse_dim_in", "mouse_hidden_dim", "mouse_qk_dim_list")  # needed unless `enable_mouse` is false
NEEDED_ENTRIES = {
    "transformer": ("in_channels", "num_layers", "num_attention_heads", "attention_head_dim", "ffn_dim", "action_config"),
    "vae": ("z_dim",),
    "image_encoder": ("hidden_size", "image_size", "patch_size"),
}

STAY = "stay"
KEYS = {  # number of keyboard keys -> their names; only models with seven keys have a key for "stay"
    2: ("forward", "back"),
    4: ("forward", "back", "left", "right"),
    7: (STAY, "jump", "slide", "turn-left", "turn-right", "left", "right"),
}
LOOK_STEP = 0.1  # the mouse's movement in one pixel frame, vertically or horizontally, in the unit of the training data
LOOKS = {
    "look-up": (LOOK_STEP, 0.0),
    "look-down": (-LOOK_STEP, 0.0),
    "look-left": (0.0, -LOOK_STEP),
    "look-right": (0.0, LOOK_STEP),
}

CHECKPOINT_NAMES = (  # FastVideo's name -> diffusers' name; names that are already diffusers' do not change
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
    """The sizes of the action modules.

    Attributes:
        layers: the number of layers with an action module. They are the transformer's first layers.
        width: the number of channels of all heads together.
        keys: the number of keyboard keys.
        key_width: the number of channels to which the states of all keys in one pixel frame are embedded.
        mouse_width: the number of mouse values per pixel frame, 0 without a mouse.
        stride: the number of pixel frames per latent frame.
        reach: a latent frame sees the actions in this number of pixel frames, directly before its last pixel frame.
        time_width: the number of a head's channels that the rotary embedding, with the base `theta`, rotates.
    """

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
class ActionWanSpec(CausalWanSpec):
    """The spec of a causal model with action modules. `shape` has the sizes of these modules."""

    shape: ActionShape
    combines_actions: bool = True
    reads_prompt: bool = False

    def encode_action(self, action: str | None) -> tuple[list[float], list[float]]:
        """Return two lists: the states of the keys (1 if pressed, else 0), and the mouse's movement (empty without a mouse).

        An `action` of None means "stay". Raises: RequestError for an unknown action.
        """
        words = (action or STAY).split(AND)
        if not set(words) <= set(self.actions):
            known = ", ".join(self.actions)
            raise RequestError(f"action={(action or '')[:40]!r}", f"must be of {known}, joined by {AND}", "choose others")
        moves = [LOOKS[word] for word in words if word in LOOKS]
        mouse = [sum(numbers) for numbers in zip(*moves, strict=True)] if moves else [0.0] * self.shape.mouse_width
        return [float(key in words) for key in KEYS[self.shape.keys]], mouse


class ActionWanFamily(WanFamily):
    """The family of Matrix-Game 2.0. See `backend.models.spec.Family`."""

    name = "matrix-game"
    supports = SUPPORTED
    pipelines = PIPELINES
    body = "backend.models.causal_wan.action_model:ActionWanModel"

    def read_spec(self, index: Config, configs: Configs) -> ActionWanSpec:
        check_parts({part: ["diffusers", part] for part in configs}, configs, NEEDED_ENTRIES, "a whole checkpoint")
        check_classes(configs, {"transformer": TRANSFORMERS, "vae": (AUTOENCODER,)}, SUPPORTED)
        latents = configs["vae"]["z_dim"]
        if configs["transformer"]["in_channels"] != 2 * latents + vae_scales(configs)[1]:
            raise channel_mismatch(configs, latents, SUPPORTED)
        spec = _make_spec(configs)
        check_window(spec)
        return spec

    def distinctive_shapes(self, configs: Configs, part: str) -> dict[str, tuple[int, ...]]:
        # FastVideo and diffusers use the same names for these tensors
        if part != "transformer":
            return super().distinctive_shapes(configs, part)
        config, shape = configs[part], read_action_shape(configs[part])
        width, last = transformer_width(config), config["num_layers"] - 1
        return {
            f"blocks.{last}.attn2.to_q.weight": (width, width),
            f"blocks.{shape.layers - 1}.action_model.keyboard_embed.0.weight": (shape.key_width, shape.keys),
        }

    def step_flops(self, configs: Configs, request: VideoSettings, branches: int) -> StepFlops:
        """See `Family`. The result is for one block whose tokens attend to a full attention window.

        The attention in the action modules is left out, because it is small.
        """
        spec, config, image_encoder = _make_spec(configs), configs["transformer"], configs["image_encoder"]
        geometry = request.geometry()
        frame = geometry.num_tokens // geometry.num_latent_frames
        queries = min(spec.chunk, geometry.num_latent_frames) * frame
        plain = transformer_flops(config, queries, spec.window * frame, branches, request.quantize)
        width, inner, layers = transformer_width(config), spec.shape.width, spec.shape.layers * branches
        keyboard_flops = 2 * width * inner
        mouse_flops = 2 * width * inner + 4 * inner * inner if spec.shape.mouse_width else 0
        no_text = TEXT_TOKENS - (image_encoder["image_size"] // image_encoder["patch_size"]) ** 2 - 1
        without_text = 4 * queries * no_text * width * config["num_layers"] * branches
        added = 2 * queries * (keyboard_flops + mouse_flops) * layers - without_text
        return dataclasses.replace(plain, matmul=plain.matmul + added)

    def original_name(self, stem: str) -> str:
        return super().original_name(re.sub(rf"^{re.escape(ACTIONS)}(\d+)\.", r"blocks.\1.action_model.", stem))


ACTION_WAN = ActionWanFamily()


def diffusers_name(name: str) -> str:
    """Convert a tensor's name in a file to diffusers' name. Names of tensors of action modules get the prefix `ACTIONS`."""
    return apply_patterns(name, CHECKPOINT_NAMES)


def read_action_shape(transformer: Config) -> ActionShape:
    """Read the action modules' sizes from a transformer's configuration. Raises: ModelError for unsupported entries."""
    config = transformer["action_config"]
    has_mouse = config.get("enable_mouse", True)
    missing = [name for name in ACTION_ENTRIES + (MOUSE_ENTRIES if has_mouse else ()) if name not in config]
    if missing:
        raise ModelError(f"transformer/config.json has no action_config.{missing[0]}:", "action modules need this entry", AGAIN)
    stride, blocks, channels = config["vae_time_compression_ratio"], list(config["blocks"]), list(config["rope_dim_list"])
    shape = ActionShape(
        layers=len(blocks),
        heads=config["heads_num"],
        width=config["keyboard_hidden_dim"],
        keys=config["keyboard_dim_in"],
        key_width=config["hidden_size"],
        mouse_width=config["mouse_dim_in"] if has_mouse else 0,
        stride=stride,
        reach=stride * config["windows_size"],
        time_width=config["rope_dim_list"][0],
        theta=config["rope_theta"],
    )
    is_same_mouse_shape = not shape.mouse_width or (
        shape.mouse_width == len(LOOKS["look-up"])
        and config["mouse_hidden_dim"] == shape.width
        and list(config["mouse_qk_dim_list"]) == channels
    )
    wrong = [
        name
        for name, fits in {
            f"blocks={blocks}": blocks == list(range(shape.layers)) and 0 < shape.layers <= transformer["num_layers"],
            f"keyboard_dim_in={shape.keys}": shape.keys in KEYS,
            "enable_keyboard=false": config.get("enable_keyboard", True),
            "qk_norm=false": config.get("qk_norm", True),
            "qkv_bias=true": not config.get("qkv_bias", False),
            f"rope_dim_list={channels}": sum(channels) == shape.width // shape.heads and shape.time_width % 2 == 0,
            "a mouse of another shape": is_same_mouse_shape,
            f"img_hidden_size={config.get('img_hidden_size')}": config.get("img_hidden_size")
            in (None, transformer_width(transformer)),
        }.items()
        if not fits
    ]
    if wrong:
        raise unsupported_checkpoint(f"its action_config has {wrong[0]}", [SUPPORTED])
    return shape


def _make_spec(configs: Configs) -> ActionWanSpec:
    transformer = configs["transformer"]
    if transformer.get(SINK, 0):
        raise unsupported_checkpoint(f"it keeps the first {transformer[SINK]} frames in its window", [SUPPORTED])
    shape, trained = read_action_shape(transformer), transformer.get(TRAINED, TRAINED_FRAMES)
    window = transformer.get(WINDOW, USUAL_WINDOWS[shape.keys])
    return ActionWanSpec(
        name="matrix-game",
        tasks=("i2v",),
        conditioning="channels",
        has_image_encoder=True,
        inputs={"image": "must"},
        actions=(*(key for key in KEYS[shape.keys] if key != STAY), *(LOOKS if shape.mouse_width else ()), STAY),
        scales=vae_scales(configs),
        chunk=transformer.get(BLOCK, 3),
        window=trained if window < 0 else window,
        sink=0,
        trained=trained,
        from_inputs=frozenset({"image_seen", "image_channels"}),
        shape=shape,
    )
