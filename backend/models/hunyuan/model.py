"""HunyuanVideo 1.5's networks, their programs, and the work from a request to pixels. See `backend.models.model.Model`. Context
tokens are padded to one of a few lengths. Each length has its own program of the step. A shorter length is faster."""

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np
from transformers import SiglipImageProcessorPil

from backend.checkpoints.json_files import AGAIN
from backend.errors import ModelError
from backend.models.common.networks import encoder_network, read_part, read_tokenizer
from backend.models.common.pixels import as_float32, image_to_pixels
from backend.models.common.programs import ClipPrograms, common_programs
from backend.models.common.step_cache import StepCache
from backend.models.common.text import TIED
from backend.models.common.whole_clip import WholeClipModel, WholeClipStepContext
from backend.models.hunyuan import text_encoder
from backend.models.hunyuan.conditions import (
    PREFIXES,
    count_most_tokens,
    join_quoted_embeddings,
    make_context_tokens,
    text_conditions,
)
from backend.models.hunyuan.image_encoder import ImageEncoder
from backend.models.hunyuan.spec import QUOTED_TOKENS, SHORT_TOKENS, TEXT_TOKENS, HunyuanSpec, context_tokens
from backend.models.hunyuan.text_encoder import LENGTHS, MOST_TOKENS, QuotedTextEncoder, TextEncoder
from backend.models.hunyuan.transformer import Context, Denoiser, layer_matrix_bytes
from backend.models.hunyuan.vae import VideoAutoencoder
from backend.models.model import AttentionLengths, Conditions, Inputs, ModelPlan, Network, PromptConditions, StepState, Weights
from backend.runtime.mesh import Layout
from backend.runtime.program import Program
from backend.runtime.work import Call, Effects, OnHost, Put, Work, Zeros
from backend.schemas.progressive import HALF
from backend.schemas.request import GenerationRequest
from backend.schemas.step_plan import StepPlan
from backend.weights.host_offload import load_onto_devices

SHORT_LENGTHS = (64, 256, SHORT_TOKENS)  # padded lengths of prompt and quoted text; TPUs use only the last, for fewer programs
MOST_CONTEXT_TOKENS = QUOTED_TOKENS + TEXT_TOKENS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Programs(ClipPrograms):
    embed_quoted: Program
    embed_still: Program


class HunyuanModel(WholeClipModel):
    spec: HunyuanSpec
    _text_encoder: TextEncoder
    _repeats = (1, 4, 16, 48)
    _text_tokens = TEXT_TOKENS
    _text_options = {"renamed": text_encoder.installed_name}
    _layer_matrix_bytes = staticmethod(layer_matrix_bytes)

    def _make_encoders(self, plan: ModelPlan) -> None:
        is_tpu = plan.devices[0].platform == "tpu"
        self._padded_lengths = (SHORT_TOKENS,) if is_tpu else SHORT_LENGTHS
        configs, tokenizer = plan.configs, read_tokenizer(plan)
        if tokenizer is not None and not tokenizer.chat_template:
            raise ModelError("The checkpoint's tokenizer folder has no chat template:", "the prompt is read as a chat", AGAIN)
        lengths = (MOST_TOKENS,) if is_tpu else LENGTHS
        self._text_encoder = TextEncoder(configs["text_encoder"], tokenizer, lengths)
        self._quoted = QuotedTextEncoder(configs["text_encoder_2"], read_tokenizer(plan, "tokenizer_2"))
        self._image_encoder = None
        if self.spec.has_image_encoder:
            processor = read_part(plan, "feature_extractor", SiglipImageProcessorPil.from_pretrained)
            self._image_encoder = ImageEncoder(configs["image_encoder"], processor)

    def _make_programs(self, plan: ModelPlan, layout: Layout) -> Programs:
        denoiser, vae = Denoiser(plan.configs["transformer"], layout), VideoAutoencoder(plan.configs["vae"], layout)
        program = functools.partial(Program, layout=layout, compiler=plan.compiler)
        return Programs(
            **common_programs(denoiser, vae, self._text_encoder, self._image_encoder, layout, plan.compiler),
            embed_quoted=program("the encoder of quoted text", self._quoted.embed, key="quoted_encode"),
            embed_still=program("the prompt's tokens", denoiser.embed_still, key="prompt_tokens"),
        )

    def _encoder_networks(self, plan: ModelPlan) -> Iterator[Network]:
        yield from super()._encoder_networks(plan)
        yield encoder_network("text_encoder_2", self._quoted, plan, self._guided.layout, tied=TIED)

    def _count_encoded(self, request: GenerationRequest) -> tuple[dict[str, int], int]:
        num_pictures = len(request.inputs().get("image", ()))
        text, quoted = self._tokenize_prompts(request), self._quoted.tokenize(self._prompts(request))
        tokens = {"text_encoder": math.prod(text.ids.shape), "text_encoder_2": math.prod(quoted.ids.shape)}
        if num_pictures:
            tokens["image_encoder"] = num_pictures * self._image_encoder.num_tokens
        return tokens, num_pictures

    def encode(self, weights: Weights, request: GenerationRequest, inputs: Inputs) -> Effects[PromptConditions]:
        programs, text = self._programs(request.is_guided), self._tokenize_prompts(request)
        quoted = self._quoted.tokenize(self._prompts(request))
        with load_onto_devices(weights["text_encoder"]) as resting:
            embeddings = yield Call(programs.embed_text, (resting, text.ids))
            letters = yield Call(programs.embed_quoted, (weights["text_encoder_2"], quoted.ids, quoted.counts))
            conditions = yield OnHost(text_conditions, (embeddings, text.counts, letters, quoted.counts))
        for picture in inputs.get("image", ()):
            pixels = self._image_encoder.preprocess(picture).astype(self.dtype)
            seen = yield Call(programs.embed_image, (weights["image_encoder"], pixels))
            conditions["image_embeds"] = yield OnHost(as_float32, (seen,))
        half: dict[str, np.ndarray] = {}
        for prefix, found in (("", conditions), (HALF, half)):
            for picture in inputs.get(f"{prefix}image", ()):
                latents = yield Call(programs.encode_image, (weights["vae"], image_to_pixels(picture, self.dtype)))
                found["first_frame"] = yield OnHost(as_float32, (latents,))
        return PromptConditions(full=conditions, half=half)

    def make_step_context(
        self, weights: Weights, request: GenerationRequest, conditions: Conditions, step_plan: StepPlan, step_state: StepState
    ) -> Effects[tuple[WholeClipStepContext, StepCache | None]]:
        del step_state  # each step context starts with an empty step cache, because guidance changes the cache's shape
        programs, branches = self._programs(step_plan.is_guided), 2 if step_plan.is_guided else 1
        picture = conditions.get("image_embeds")
        of_branches = tuple({name: conditions[prefix + name] for name in _TEXT_CONDITIONS} for prefix in PREFIXES[:branches])
        num_seen = 0 if picture is None else picture.shape[1]
        length = self._padded_length(request, count_most_tokens(*of_branches), branches)
        tiles = programs.denoiser.plan_tiles(self.latent_shape(request))
        multiple = 1 if tiles is None else tiles.size
        tokens = yield OnHost(
            functools.partial(make_context_tokens, num_seen=num_seen, length=length, dtype=self.dtype, multiple=multiple),
            of_branches,
        )
        tokens = yield Put(tokens, programs.layout.replicated)
        quoted = yield OnHost(join_quoted_embeddings, of_branches)
        still = yield Call(programs.embed_still, (weights["transformer"], quoted, picture))
        first_frame = yield Put(conditions.get("first_frame"), programs.layout.replicated)
        # On a TPU the padding has space for all context tokens, because this avoids copies in the attention. Elsewhere it has
        # none, because the padding costs more than the copies.
        room = tokens.order.shape[1] if programs.layout.platform == "tpu" else 0
        positions = yield from programs.denoiser.positions(self.latent_shape(request), room)
        context = Context(tokens=tokens, still=still, positions=positions, first_frame=first_frame)
        facts = {name: getattr(step_plan, name) for name in ("expert", "is_guided", "is_small")}
        step_context = WholeClipStepContext(**facts, programs=programs, context=context)
        cache = (yield Zeros(programs.denoiser.describe_cache(context))) if request.step_cache else None
        return step_context, cache

    def prompts_for_all_programs(self, example: str) -> list[str]:
        """See `Model`. Adds a long prompt, because short and long prompts use different programs."""
        prompts = super().prompts_for_all_programs(example)
        return prompts if len(prompts) > 1 else [*prompts, " ".join([example] * self._repeats[-1])]

    def _padded_length(self, request: GenerationRequest, num_real: int | None, branches: int) -> int:
        """Return the smallest padded length that fits the tokens of a prompt and its quoted text, in all guidance branches.
        `num_real` is the largest number of tokens in a branch. Without `num_real`, count the tokens of the request's prompts."""
        if num_real is None:
            prompts = self._prompts(request)[:branches]
            text, quoted = self._text_encoder.tokenize(prompts).counts, self._quoted.tokenize(prompts).counts
            measured = isinstance(text, np.ndarray) and isinstance(quoted, np.ndarray)
            num_real = int((text + quoted).max()) if measured else max(len(prompt.split()) for prompt in prompts)
        return next((room for room in self._padded_lengths if room >= num_real), MOST_CONTEXT_TOKENS)

    def _first_decode_arguments(self, request: GenerationRequest) -> Work:
        shape, vae = self.latent_shape(request), self._programs(request.is_guided).vae
        return ((yield Zeros(vae.describe_keys(shape, self.dtype)["decoder"])),)

    def attention_lengths(self, request: GenerationRequest) -> AttentionLengths:
        """See `Model`. The sizes are for one chip, after `backend.runtime.joint_attention` has exchanged tokens for heads."""
        plain, programs = super().attention_lengths(request), self._programs(request.is_guided)
        short, group, sp = context_tokens(self._configs), plain.text_heads // plain.heads, programs.layout.size("sp")
        others = short - SHORT_TOKENS + self._padded_length(request, None, len(PREFIXES))
        tiles = programs.denoiser.plan_tiles(self.latent_shape(request))
        if tiles is not None:
            others += -others % tiles.size
            keys = tiles.num_tiles * tiles.size + others
            return dataclasses.replace(plain, queries=others, keys=keys, text_queries=TEXT_TOKENS)
        room = others if programs.layout.platform == "tpu" else 0
        own_queries = programs.denoiser.padded_tokens(self.latent_shape(request), room) * group // sp
        queries = own_queries if room and group == sp else own_queries + others
        return dataclasses.replace(plain, queries=queries, keys=plain.keys + others, text_queries=TEXT_TOKENS)


_TEXT_CONDITIONS = ("prompt_embeds", "prompt_embeds_mask", "prompt_embeds_2", "prompt_embeds_mask_2")
