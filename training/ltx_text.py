"""ltx-tiny's text encoder: a tiny Gemma 3. The connectors read the hidden states of all its layers.

Padding comes before the prompt. Attention is causal, so the last token, which ends every prompt, attends to the whole prompt. It
must represent the prompt's content.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import (
    AutoTokenizer,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    Gemma3TextModel,
    PreTrainedTokenizerFast,
    SiglipVisionConfig,
)

from training.ltx_configs import TEXT_ENCODER, TEXT_TOKENS
from training.tokenizer import make_tokenizer


def make_ltx_tokenizer(folder: Path, sentences: int = 20_000) -> PreTrainedTokenizerFast:
    """Build the tokenizer of a world with audio and write it to `folder`. Prompts are cut at 64 tokens."""
    return make_tokenizer(folder, sentences=sentences, has_sound=True, longest=TEXT_TOKENS, padding_side="left")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GemmaText:
    """See `TextModel`."""

    encoder: Gemma3TextModel
    tokenizer: PreTrainedTokenizerFast
    width: int = TEXT_ENCODER["hidden_size"]

    @classmethod
    def create(cls, tokenizer_folder: Path, device: str) -> GemmaText:
        """Create the model with random weights."""
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
        encoder = Gemma3TextModel(Gemma3TextConfig(vocab_size=len(tokenizer), **TEXT_ENCODER))
        return cls(encoder=encoder.to(device), tokenizer=tokenizer)

    @classmethod
    def load(cls, folder: Path, tokenizer_folder: Path, device: str) -> GemmaText:
        """Load the model from a folder of `save`, in float32."""
        whole = Gemma3ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
        encoder = whole.model.language_model.to(device).eval()
        return cls(encoder=encoder, tokenizer=AutoTokenizer.from_pretrained(tokenizer_folder))

    def read(self, sentences: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """See `TextModel`. The mask selects the last token."""
        states, mask = self.encode(sentences)
        return F.rms_norm(states[..., -1], (self.width,)), F.pad(mask[:, -1:], (mask.shape[1] - 1, 0))

    def encode(self, prompts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states before each layer and after the last [B, L, D, layers + 1], and the mask [B, L]."""
        options = dict(padding="max_length", max_length=TEXT_TOKENS, truncation=True, return_tensors="pt")
        tokens = self.tokenizer(prompts, **options).to(self.encoder.device)
        made = self.encoder(tokens.input_ids, attention_mask=tokens.attention_mask, output_hidden_states=True, use_cache=False)
        return torch.stack(made.hidden_states, -1), tokens.attention_mask

    def save(self, folder: Path) -> None:
        """Write the encoder in its published form, with the smallest possible image part, which is unused."""
        vision = SiglipVisionConfig(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
        )
        config = Gemma3Config(text_config=self.encoder.config.to_dict(), vision_config=vision.to_dict())
        whole = Gemma3ForConditionalGeneration(config)
        whole.model.language_model.load_state_dict(self.encoder.state_dict())
        whole.save_pretrained(folder)
