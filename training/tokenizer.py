"""A demo model's tokenizer: a small Unigram model with the world's words and single characters as pieces."""

from __future__ import annotations

import collections
import dataclasses
import math
import random
import re
import string
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from training.prompts import describe
from training.world import sample_training_scene

CHARACTER_SCORE = -20.0  # any whole word scores higher than its characters


@dataclasses.dataclass(frozen=True, kw_only=True)
class Notation:
    """The additions of a tokenizer to its words.

    `special_tokens` have the first ids. Text that matches `dropped` is removed. Without a chat template `end` follows each text.
    """

    special_tokens: tuple[str, ...]
    pad: str
    unknown: str
    end: str
    dropped: str | None = None
    chat_template: str | None = None


T5 = Notation(special_tokens=("<pad>", "</s>", "<unk>"), pad="<pad>", unknown="<unk>", end="</s>")  # ids 0, 1 and 2, as in T5


def make_tokenizer(
    folder: Path,
    seed: int = 0,
    sentences: int = 20_000,
    notation: Notation = T5,
    has_sound: bool = False,
    longest: int = 512,
    padding_side: str = "right",
) -> PreTrainedTokenizerFast:
    """Build the tokenizer from the world's sentences and write it to `folder`.

    It ignores case and has about 200 pieces. `longest` is the maximum length of a text in tokens.
    """
    special = notation.special_tokens
    tokenizer = Tokenizer(
        models.Unigram(_pieces(special, seed, sentences, has_sound), unk_id=special.index(notation.unknown), byte_fallback=False)
    )
    drop = [normalizers.Replace(Regex(notation.dropped), " ")] if notation.dropped else []
    tokenizer.normalizer = normalizers.Sequence(
        [*drop, normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    names = {"pad_token": notation.pad, "eos_token": notation.end, "unk_token": notation.unknown}
    if notation.chat_template is None:
        ending = (notation.end, special.index(notation.end))
        tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {notation.end}", special_tokens=[ending])
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names, model_max_length=longest, padding_side=padding_side)
    else:
        others = [token for token in special if token not in names.values()]
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names, extra_special_tokens=others)
        fast.chat_template = notation.chat_template
    fast.save_pretrained(folder)
    return fast


def _pieces(special_tokens: tuple[str, ...], seed: int, sentences: int, has_sound: bool) -> list[tuple[str, float]]:
    counts = _count_words(seed, sentences, has_sound)
    total = sum(counts.values())
    words = [("▁" + word, math.log(count / total)) for word, count in sorted(counts.items())]
    characters = [(character, CHARACTER_SCORE) for character in "▁" + string.ascii_lowercase + string.digits + string.punctuation]
    return [(token, 0.0) for token in special_tokens] + words + characters


def _count_words(seed: int, sentences: int, has_sound: bool) -> collections.Counter[str]:
    rng = random.Random(seed)
    counts: collections.Counter[str] = collections.Counter()
    for _ in range(sentences):
        counts.update(re.findall(r"[a-z][a-z-]*", describe(sample_training_scene(rng, has_sound=has_sound), rng).lower()))
    return counts
