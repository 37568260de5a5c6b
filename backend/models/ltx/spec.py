"""Recognise which LTX-2 a checkpoint is, from its configurations only, and refuse others. Reads no file."""

import dataclasses
from collections.abc import Mapping

from backend.checkpoints.json_files import Config
from backend.checkpoints.loras import LoraName
from backend.chips import StepFlops
from backend.models.common.parts import apply_patterns, channel_mismatch, check_classes, check_parts, transformer_width
from backend.models.spec import Configs, Family, ModelSpec, Need, unsupported_checkpoint
from backend.schemas.extension import Appended
from backend.schemas.settings import VideoSettings

TEXT_TOKENS = 1024  # padded length of a prompt; source: diffusers, LTX2Pipeline, max_sequence_length
MEL_SCALE = 4  # mel frames per audio latent, and mel bins per latent bin; source: diffusers, AutoencoderKLLTX2Audio
PIPELINES = ("LTX2Pipeline", "LTX2ImageToVideoPipeline", "LTX2ConditionPipeline", "LTX2InContextPipeline")
TRANSFORMER, AUTOENCODER, SOUND_AUTOENCODER = "LTX2VideoTransformer3DModel", "AutoencoderKLLTX2Video", "AutoencoderKLLTX2Audio"
VOCODERS = ("LTX2Vocoder", "LTX2VocoderWithBWE")
UPSAMPLER = "latent_upsampler"  # folder of the latent upsampler, which model_index.json does not name
NEEDED_ENTRIES = {
    "transformer": ("in_channels", "num_layers", "num_attention_heads", "attention_head_dim", "audio_num_attention_heads",
                    "audio_attention_head_dim", "cross_attention_dim", "rope_type"),
    "connectors": ("caption_channels", "text_proj_in_factor"),
    "vae": ("latent_channels", "decoder_block_out_channels", "spatial_compression_ratio", "temporal_compression_ratio"),
    "audio_vae": ("latent_channels", "mel_bins", "sample_rate", "mel_hop_length"),
    "vocoder": ("output_sampling_rate",),
    "text_encoder": (),
}  # fmt: skip
SUPPORTED = "LTX-2.0, 2.3 and 2.5 in diffusers' format"
GEMMA_4 = "gemma4_unified"  # the model type of LTX-2.5's text encoder; the other versions have Gemma 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class LtxSpec(ModelSpec):
    """The spec of an LTX-2 checkpoint.

    Attributes:
        crosses_timesteps: the attention of one stream (video or audio) to the other stream depends on the other stream's
            timestep. False for LTX-2.0, where the attention depends on the stream's own timestep.
        can_perturb: guidance can use a branch without the self-attention of one layer. False for LTX-2.0.
        sound_latents: number of audio latents per second.
        sound_shape: number of channels and number of mel bins of an audio latent."""

    tasks: tuple[str, ...] = ("t2v", "i2v")
    continues: bool = True
    scales: tuple[int, int] = (32, 8)
    patch: int = 1
    crosses_timesteps: bool = True
    can_perturb: bool = True
    sound_latents: float = 25.0
    sound_shape: tuple[int, int] = (8, 16)
    # `over_floor` follows from check-tpu's prediction of 0.143 s for a step of ltx-2.0-512p on v6e:2x4, see docs/performance.md.
    over_floor: float = 2.4


INPUTS: Mapping[str, Need] = {role: "may" for role in ("image", "last_image", "keyframes", "control", "video", "sound")}
NEWEST = LtxSpec(name="ltx-2.5", inputs=INPUTS, other_series=("ltx-2.0", "ltx-2.3"))
NEW = LtxSpec(name="ltx-2.3", inputs=INPUTS, other_series=(NEWEST.name,))
OLD = dataclasses.replace(NEW, name="ltx-2.0", crosses_timesteps=False, can_perturb=False)

# Patterns from diffusers' names to the original authors' names; source: diffusers, scripts/convert_ltx2_to_diffusers.py
ORIGINAL_NAMES = (
    (r"^proj_in$", "patchify_proj"), (r"^audio_proj_in$", "audio_patchify_proj"), (r"^time_embed\.", "adaln_single."),
    (r"^audio_time_embed\.", "audio_adaln_single."), (r"\.norm_q$", ".q_norm"), (r"\.norm_k$", ".k_norm"),
)  # fmt: skip


class LtxFamily(Family):
    """The family of LTX-2. See `backend.models.spec.Family`."""

    name = "ltx"
    supports = SUPPORTED
    pipelines = PIPELINES
    body = "backend.models.ltx.model:LtxModel"

    def read_spec(self, index: Config, configs: Configs) -> LtxSpec:
        check_parts(index, configs, NEEDED_ENTRIES, "a whole LTX-2 checkpoint")
        classes = {"transformer": (TRANSFORMER,), "vae": (AUTOENCODER,), "audio_vae": (SOUND_AUTOENCODER,), "vocoder": VOCODERS}
        check_classes(configs, classes, SUPPORTED)
        transformer, vae, sound = configs["transformer"], configs["vae"], configs["audio_vae"]
        upsampler = configs.get(UPSAMPLER)
        latents, found = vae["latent_channels"], configs["text_encoder"].get("model_type", "unknown")
        if transformer["in_channels"] != latents:
            raise channel_mismatch(configs, latents, SUPPORTED)
        if transformer["rope_type"] != "split":
            raise unsupported_checkpoint(f"its transformer has rope_type={transformer['rope_type']}, not split", [SUPPORTED])
        is_newest = not transformer.get("ff_bias", True)
        if is_newest != (found == GEMMA_4):
            version = "LTX-2.5" if is_newest else "an older LTX-2"
            raise unsupported_checkpoint(f"its transformer is from {version}, but its text encoder is {found}", [SUPPORTED])
        if upsampler is not None:
            scale = upsampler.get("rational_spatial_scale", 2.0) if upsampler.get("use_rational_resampler", True) else 2.0
            doubles_frames = upsampler.get("temporal_upsample", False)
            kind = upsampler["in_channels"], upsampler["spatial_upsample"], doubles_frames, scale, upsampler["dims"]
            if kind != (latents, True, False, 2.0, 3):
                raise unsupported_checkpoint("its latent upsampler does not double the size of its latents", [SUPPORTED])
        if vae.get("timestep_conditioning") or any(vae.get("decoder_inject_noise", ())):
            raise unsupported_checkpoint("its decoder adds noise", [SUPPORTED])
        newer = NEWEST if is_newest else NEW
        spec = newer if transformer.get("perturbed_attn") else OLD
        return dataclasses.replace(
            spec,
            scales=(vae["spatial_compression_ratio"], vae["temporal_compression_ratio"]),
            sound_rate=configs["vocoder"]["output_sampling_rate"],
            sound_latents=sound["sample_rate"] / sound["mel_hop_length"] / MEL_SCALE,
            sound_shape=(sound["latent_channels"], sound["mel_bins"] // MEL_SCALE),
            refines=upsampler is not None,
        )

    def distinctive_shapes(self, configs: Configs, part: str) -> dict[str, tuple[int, ...]]:
        config = configs[part]
        if part == "transformer":
            width = transformer_width(config)
            last = f"transformer_blocks.{config['num_layers'] - 1}.attn1.to_q.weight"
            return {"proj_in.weight": (width, config["in_channels"]), last: (width, width)}
        if part == "vae":
            widest = config["decoder_block_out_channels"][-1]
            return {"decoder.conv_in.conv.weight": (widest, config["latent_channels"], 3, 3, 3)}
        if part == UPSAMPLER:
            return {"final_conv.weight": (config["in_channels"], config["mid_channels"], 3, 3, 3)}
        if part == "text_encoder":
            text = config.get("text_config", config)
            last = f"layers.{text['num_hidden_layers'] - 1}.mlp.down_proj.weight"
            return {last: (text["hidden_size"], text["intermediate_size"])}
        return {}

    def step_flops(self, configs: Configs, request: VideoSettings, branches: int) -> StepFlops:
        """See `Family`. Counts the operations on the tokens of the video, of keyframes and of a control clip. These are
        self-attention, attention to the text, attention between the streams, projections and feed-forward. The projections of the
        text to keys and values count too, for video and for audio. All other operations for audio are left out. They are about 1
        % of the step."""
        config = configs["transformer"]
        width, layers = transformer_width(config), config["num_layers"] * branches
        tokens = request.geometry().num_tokens + Appended.from_request(request).num_tokens
        sound = config["audio_num_attention_heads"] * config["audio_attention_head_dim"]
        across = 4 * tokens * width * sound + 4 * tokens * sound * width
        own = 2 * tokens * width * width * (4 + 2 + 8) + across
        text = 2 * TEXT_TOKENS * (2 * width * width + 2 * sound * sound) + 4 * tokens * TEXT_TOKENS * width
        return StepFlops(
            attention=4 * tokens**2 * width * layers, matmul=(own + text) * layers, head_width=config["attention_head_dim"]
        )

    def lora_names(self, stem: str) -> tuple[LoraName, ...]:
        """See `Family`. There is one other name, because ComfyUI uses the original authors' names."""
        return (LoraName(apply_patterns(stem, ORIGINAL_NAMES)),)


LTX = LtxFamily()
