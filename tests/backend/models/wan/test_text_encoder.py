"""Prompts become the same tokens as in diffusers' Wan pipelines, from the tokenizer files of real checkpoints."""

import json
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from diffusers.pipelines.wan.pipeline_wan import prompt_clean
from transformers import AutoTokenizer, T5Tokenizer

from backend.models.wan.text_encoder import LENGTHS, TEXT_TOKENS, TextEncoder, clean_prompt

TEXT = dict(vocab_size=400, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, feed_forward_proj="gated-gelu")
CORPUS = [
    "a red circle moves right over a dark background",
    "一只猫在跑，色调艳丽，过曝，静态",
    "Two cats fight on a stage",
    "ein grüner Stern wächst",
    "the quick brown fox jumps over the lazy dog",
] * 20
PROMPTS = ["a red circle", "", "  two   cats\n\tfight &amp;amp; run ", "色调艳丽，过曝", "â€œquotedâ€\x9d text", "grün"]


@pytest.fixture(scope="module")
def spiece(tmp_path_factory) -> Path:
    """A SentencePiece model in the format of the google/umt5-xxl model, with the special tokens that transformers gives to T5."""
    folder = tmp_path_factory.mktemp("spiece")
    (folder / "corpus.txt").write_text("\n".join(CORPUS), "utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "corpus.txt"),
        model_prefix=str(folder / "spiece"),
        vocab_size=380,
        model_type="unigram",
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        bos_id=-1,
        unk_id=2,
        minloglevel=2,
    )
    return folder / "spiece.model"


@pytest.fixture(params=["spiece.model", "tokenizer.json", "both"])
def tokenizer_folder(request, spiece, tmp_path) -> Path:
    """The formats of the tokenizer in checkpoints. The real checkpoints have both files."""
    if request.param != "spiece.model":
        T5Tokenizer.from_pretrained(str(spiece.parent), extra_ids=0).save_pretrained(tmp_path)
        assert (tmp_path / "tokenizer.json").is_file()
    if request.param != "tokenizer.json":
        (tmp_path / "spiece.model").write_bytes(spiece.read_bytes())
        tokens = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
        config = {"tokenizer_class": "T5Tokenizer", **tokens, "extra_ids": 0, "legacy": True, "sp_model_kwargs": {}}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        (tmp_path / "special_tokens_map.json").write_text(json.dumps(tokens))
    return tmp_path


def test_tokens_are_those_of_sentencepiece_and_of_diffusers(tokenizer_folder, spiece):
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(spiece))
    encoder = TextEncoder(TEXT, tokenizer)
    for prompt in PROMPTS:
        ours = encoder.tokenize([prompt])
        reference = tokenizer([prompt_clean(prompt)], padding="max_length", max_length=512, truncation=True, return_tensors="np")
        length = int(reference["attention_mask"].sum())
        np.testing.assert_array_equal(ours.ids[0, :length], reference["input_ids"][0, :length])
        np.testing.assert_array_equal(ours.mask.sum(), length)
        assert ours.ids[0, :length].tolist() == [*pieces.encode(prompt_clean(prompt)), 1]
        assert (ours.ids[0, length:] == 0).all() and ours.notes == ()


def test_prompts_are_cleaned_as_diffusers_cleans_them():
    for prompt in (*PROMPTS, "a&lt;b", "ﬁne “quotes”", "Ã©tÃ©"):
        assert clean_prompt(prompt) == prompt_clean(prompt)


def test_a_prompt_that_is_too_long_is_cut_as_diffusers_cuts_it_and_said(spiece):
    tokenizer = T5Tokenizer.from_pretrained(str(spiece.parent), extra_ids=0)
    long = "a red circle moves right over a dark background " * 100
    tokens = TextEncoder(TEXT, tokenizer).tokenize(["a red circle", long])
    reference = tokenizer([prompt_clean(long)], padding="max_length", max_length=512, truncation=True, return_tensors="np")
    np.testing.assert_array_equal(tokens.ids[1], reference["input_ids"][0])
    assert tokens.ids.shape == (2, TEXT_TOKENS) and tokens.bias is None and tokens.ids[1, -1] == 1
    count = len(tokenizer(prompt_clean(long))["input_ids"])
    assert tokens.notes == (f"The negative prompt has {count} tokens, of which the model reads 512: its end was left out",)


def test_the_smallest_compiled_length_is_taken(spiece):
    tokenizer = T5Tokenizer.from_pretrained(str(spiece.parent), extra_ids=0)
    tokens = TextEncoder(TEXT, tokenizer).tokenize(["a red circle"])
    assert tokens.ids.shape == (1, LENGTHS[0]) and tokens.bias.shape == (1, 1, 1, LENGTHS[0])
