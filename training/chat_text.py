"""hunyuan-tiny's text encoder: a tiny text part of Qwen2.5-VL that reads the prompt as the user's turn of a chat.

diffusers' pipelines remove as many tokens at the start as their own template has, and use the state two layers before the last.
So the demo's template has the same number of tokens before the prompt, all equal, and saving adds two unused layers. This
tokenizer drops quoted text, which another encoder reads.
"""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import HunyuanVideo15Pipeline
from diffusers.pipelines.hunyuan_video1_5.pipeline_hunyuan_video1_5 import format_text_input
from transformers import AutoTokenizer, DynamicCache, PreTrainedTokenizerFast, Qwen2_5_VLTextConfig, Qwen2_5_VLTextModel

from training.hunyuan_configs import TEXT_ENCODER, TEXT_WIDTH, USED_LAYERS
from training.tokenizer import Notation, make_tokenizer

_OF_DIFFUSERS = inspect.signature(HunyuanVideo15Pipeline._get_mllm_prompt_embeds).parameters
CUT_TOKENS: int = _OF_DIFFUSERS["crop_start"].default
UNUSED_LAYERS: int = _OF_DIFFUSERS["num_hidden_layers_to_skip"].default
TEXT_POSITIONS = 26  # the longest of 3000 sentences had 24 tokens, including the closing tokens
PAD, FILL, START, END, ANSWER = "<|endoftext|>", "<|fill|>", "<|im_start|>", "<|im_end|>", "<|assistant|>"
CLOSING = (END, START, ANSWER)  # tokens after the prompt; attention is causal, so they attend to the whole prompt
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}"
    f"{{{{ '{FILL}' * {CUT_TOKENS - 1} }}}}{START}{{{{ message['content'] }}}}{END}"
    "{% endif %}{% endfor %}"
    f"{{% if add_generation_prompt %}}{START}{ANSWER}{{% endif %}}"
)
NOTATION = Notation(
    special_tokens=(PAD, "<unk>", FILL, START, END, ANSWER),
    pad=PAD,
    unknown="<unk>",
    end=END,
    dropped='"[^"]*"|“[^”]*”',
    chat_template=CHAT_TEMPLATE,
)


def make_chat_tokenizer(folder: Path, sentences: int = 20_000) -> PreTrainedTokenizerFast:
    """Build the tokenizer with its chat template and write it to `folder`."""
    return make_tokenizer(folder, sentences=sentences, notation=NOTATION)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatText:
    """See `TextModel`. `encoder` has only the used layers, without the last norm."""

    encoder: Qwen2_5_VLTextModel
    tokenizer: PreTrainedTokenizerFast
    width: int = TEXT_WIDTH

    @classmethod
    def create(cls, tokenizer_folder: Path, device: str) -> ChatText:
        """Create the model with random weights."""
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
        return cls(encoder=_used_part(_whole_encoder(tokenizer)).to(device), tokenizer=tokenizer)

    @classmethod
    def load(cls, folder: Path, tokenizer_folder: Path, device: str) -> ChatText:
        """Load the model from a folder of `save`, in float32."""
        whole = Qwen2_5_VLTextModel.from_pretrained(folder, dtype=torch.float32).eval()
        return cls(encoder=_used_part(whole).to(device), tokenizer=AutoTokenizer.from_pretrained(tokenizer_folder))

    def read(self, sentences: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """See `TextModel`. The mask selects the closing tokens.

        Embeddings are normalised here, because no norm follows the used layers and small embeddings are learned slowly.
        """
        hidden, mask = self.encode(sentences)
        last = mask.sum(1, keepdim=True)
        positions = torch.arange(mask.shape[1], device=mask.device)
        return F.rms_norm(hidden, (self.width,)), ((positions >= last - len(CLOSING)) & (positions < last)).long()

    def encode(self, prompts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return embeddings [B, L, D] and the mask [B, L] of each prompt's tokens, zero after them.

        L is 26, or more for longer prompts. The tokens before the prompt are the same for all prompts, so they run once and their
        keys and values are expanded.
        """
        device, chats = self.encoder.device, format_text_input(prompts, "")
        rows = self.tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
        cache = DynamicCache(config=self.encoder.config)
        self.encoder(torch.tensor([rows[0][:CUT_TOKENS]], device=device), past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(len(rows))
        width = max(TEXT_POSITIONS, max(map(len, rows)) - CUT_TOKENS)
        padded = [row[CUT_TOKENS:] + [self.tokenizer.pad_token_id] * (CUT_TOKENS + width - len(row)) for row in rows]
        hidden = self.encoder(torch.tensor(padded, device=device), past_key_values=cache, use_cache=True).last_hidden_state
        lengths = torch.tensor([len(row) - CUT_TOKENS for row in rows], device=device)
        mask = (torch.arange(width, device=device) < lengths[:, None]).long()
        return hidden * mask[..., None], mask

    def save(self, folder: Path) -> None:
        """Write the encoder with the two unused layers."""
        whole = _whole_encoder(self.tokenizer)
        whole.load_state_dict(self.encoder.state_dict(), strict=False)
        whole.save_pretrained(folder)


def _whole_encoder(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLTextModel:
    config = Qwen2_5_VLTextConfig(
        **TEXT_ENCODER,
        vocab_size=len(tokenizer),
        num_hidden_layers=USED_LAYERS + UNUSED_LAYERS,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    return Qwen2_5_VLTextModel(config)


def _used_part(encoder: Qwen2_5_VLTextModel) -> Qwen2_5_VLTextModel:
    encoder.layers = encoder.layers[:-UNUSED_LAYERS]
    encoder.norm = torch.nn.Identity()
    return encoder
