"""The demo model's tokenizer: a small Unigram model whose pieces are the world's words, then single characters."""

from __future__ import annotations

import collections
import math
import random
import re
import string
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from training.prompts import describe
from training.world import sample_training_scene

SPECIAL_TOKENS = ("<pad>", "</s>", "<unk>")  # ids 0, 1 and 2, as in T5
CHARACTER_SCORE = -20.0  # any whole word beats its spelling


def make_tokenizer(folder: Path, seed: int = 0, sentences: int = 20_000) -> PreTrainedTokenizerFast:
    """Build the tokenizer from the world's sentences and write it to `folder`. It ignores case; about 200 pieces."""
    tokenizer = Tokenizer(models.Unigram(_pieces(seed, sentences), unk_id=2, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=512
    )
    fast.save_pretrained(folder)
    return fast


def _pieces(seed: int, sentences: int) -> list[tuple[str, float]]:
    counts = _count_words(seed, sentences)
    total = sum(counts.values())
    words = [("▁" + word, math.log(count / total)) for word, count in sorted(counts.items())]
    characters = [(character, CHARACTER_SCORE) for character in "▁" + string.ascii_lowercase + string.digits + string.punctuation]
    return [(token, 0.0) for token in SPECIAL_TOKENS] + words + characters


def _count_words(seed: int, sentences: int) -> collections.Counter[str]:
    rng = random.Random(seed)
    counts: collections.Counter[str] = collections.Counter()
    for _ in range(sentences):
        counts.update(re.findall(r"[a-z][a-z-]*", describe(sample_training_scene(rng), rng).lower()))
    return counts
