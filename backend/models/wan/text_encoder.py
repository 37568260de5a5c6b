"""Encode prompts with the checkpoint's tokenizer and UMT5 encoder. Prompts are cleaned as in diffusers' Wan pipelines.

Wan attends to 512 text positions: the prompt and padding. All padding embeddings are zero. Therefore one padding position can
replace all, if a bias raises its score by the logarithm of their number. The softmax gives the same result.
"""

import copy
import dataclasses
import html
from collections.abc import Mapping

import ftfy
import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import PartitionSpec as P
from transformers import PreTrainedTokenizerBase, UMT5Config, UMT5EncoderModel

from backend.checkpoints.json_files import Config
from backend.models.common.modules import network_settings, select_prefix
from backend.models.common.text import TIED, embed_masked, note_cut_prompts, pad_ids
from backend.models.common.text import TextEncoder as TextEncoderBase
from backend.models.wan.spec import TEXT_TOKENS
from backend.runtime.mesh import Layout
from backend.runtime.program import Program
from backend.runtime.torch_modules import call_module
from backend.runtime.work import Call, Make, Put, Wait, Work
from backend.weights.host_offload import load_onto_devices

LENGTHS = (32, 64, 128, 256, TEXT_TOKENS)  # lengths in tokens to which text is padded; each has compiled programs


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextTokens:
    """The tokens of B prompts, padded to L positions.

    Attributes:
        ids: the token ids [B, L] int32.
        mask: [B, L] int32, 1 for the prompt's tokens, 0 for padding.
        bias: [B, 1, 1, L] float32, the attention bias of each position. None at the full length, where no bias is needed.
    """

    ids: np.ndarray | jax.ShapeDtypeStruct
    mask: np.ndarray | jax.ShapeDtypeStruct
    bias: np.ndarray | None
    notes: tuple[str, ...] = ()


class TextEncoder(TextEncoderBase):
    """The text encoder of Wan. See `backend.models.common.text.TextEncoder`."""

    _columns = (".o.weight", ".wo.weight", *TIED)

    def __init__(
        self,
        config: Config,
        tokenizer: PreTrainedTokenizerBase | None,
        lengths: tuple[int, ...] = LENGTHS,
        is_cleaned: bool = True,
    ) -> None:
        with torch.device("meta"):
            self._model = UMT5EncoderModel(UMT5Config(**network_settings(config))).eval()
        self._tokenizer, self._lengths, self._is_cleaned = tokenizer, lengths, is_cleaned

    def tokenize(self, prompts: list[str]) -> TextTokens:
        """Tokenize prompts. Without a tokenizer, return only the shapes of the arrays.

        All prompts are padded to the smallest length that is longer than the longest prompt, else to the full length.
        """
        if self._tokenizer is None:
            ids = jax.ShapeDtypeStruct((len(prompts), TEXT_TOKENS), jnp.int32)
            return TextTokens(ids=ids, mask=ids, bias=None)
        read = [clean_prompt(prompt) if self._is_cleaned else prompt for prompt in prompts]
        tokens = [self._tokenizer(prompt)["input_ids"] for prompt in read]
        notes = note_cut_prompts([len(ids) for ids in tokens], TEXT_TOKENS)
        tokens = [[*ids[: TEXT_TOKENS - 1], ids[-1]] if len(ids) > TEXT_TOKENS else ids for ids in tokens]
        lengths = tuple(len(ids) for ids in tokens)
        width = next(length for length in self._lengths if length > max(lengths) or length == TEXT_TOKENS)
        ids = pad_ids(tokens, width, self._tokenizer.pad_token_id)
        mask = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int32)
        bias = None
        if width < TEXT_TOKENS:  # the last position represents all padding positions up to the full length
            bias = np.zeros((len(lengths), 1, 1, width), np.float32)
            for row, length in zip(bias, lengths, strict=True):
                row[0, 0, length:] = -np.inf
                row[0, 0, -1] = np.log(TEXT_TOKENS - length)
        return TextTokens(ids=ids, mask=mask, bias=bias, notes=notes)

    @classmethod
    def weight_spec(cls, layout: Layout, name: str, shape: tuple[int, ...]) -> P:
        return P() if "relative_attention_bias" in name else super().weight_spec(layout, name, shape)

    def embed(self, weights: Mapping[str, jax.Array], ids: jax.Array, mask: jax.Array) -> jax.Array:
        """Encode the ids and mask of `TextTokens` to embeddings [B, L, D], zero for padding. This method is pure."""
        return embed_masked(self._model, weights, ids, mask)

    def embed_by_layers(self, layer: Program, norm: Program, weights: Mapping[str, jax.Array], tokens: TextTokens) -> Work:
        """Compute `embed` with weights on the host, of which only one layer at a time is copied to the devices. Yields work.

        `layer` and `norm` are programs of `run_layer` and `normalise`.
        """
        table = next(weights[name] for name in TIED if name in weights)
        described = jax.ShapeDtypeStruct((*tokens.ids.shape, table.shape[1]), table.dtype)
        rows = yield Make(lambda: np.asarray(table)[np.asarray(tokens.ids)], described)
        hidden = yield Put(rows, layer.layout.replicated)
        for index in range(self._model.config.num_layers):
            with load_onto_devices(select_prefix(weights, f"encoder.block.{index}.")) as own:
                hidden = yield Call(layer, (own, hidden, tokens.mask))
                yield Wait(hidden)
        with load_onto_devices(select_prefix(weights, "encoder.final_layer_norm.")) as own:
            return (yield Call(norm, (own, hidden, tokens.mask)))

    def run_layer(self, weights: Mapping[str, jax.Array], hidden: jax.Array, mask: jax.Array) -> jax.Array:
        """Run one layer on `hidden` [B, L, D]. `weights` are the tensors of the layer. This method is pure."""
        model = self._with_layers(1)
        model.encoder.final_layer_norm = torch.nn.Identity()
        own = {f"encoder.block.0.{name}": leaf for name, leaf in weights.items()}
        return call_module(model, own, _run_encoder, hidden, mask)

    def normalise(self, weights: Mapping[str, jax.Array], hidden: jax.Array, mask: jax.Array) -> jax.Array:
        """Apply the norm that follows the last layer, and set padding to zero. This method is pure."""
        own = {f"encoder.final_layer_norm.{name}": leaf for name, leaf in weights.items()}
        return call_module(self._with_layers(0), own, _run_encoder, hidden, mask) * mask[..., None].astype(hidden.dtype)

    def _with_layers(self, count: int) -> UMT5EncoderModel:
        config = copy.deepcopy(self._model.config)
        config.num_layers = count
        with torch.device("meta"):
            return UMT5EncoderModel(config).eval()


def _run_encoder(model: UMT5EncoderModel, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return model(inputs_embeds=hidden, attention_mask=mask).last_hidden_state


def clean_prompt(prompt: str) -> str:
    """Repair broken Unicode, resolve HTML entities twice and collapse white space, as diffusers does for Wan."""
    text = html.unescape(html.unescape(ftfy.fix_text(prompt)))
    return " ".join(text.split())
