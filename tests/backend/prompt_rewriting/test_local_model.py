"""Run a language model on this machine's processors: a tiny random model with the real classes, in its real process."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from backend.errors import StudioError
from backend.prompt_rewriting.helper import stream_suggestions
from backend.prompt_rewriting.local_model import LocalModel
from backend.prompt_rewriting.request import RewriteRequest
from presets import load_preset

CHARACTERS = [chr(code) for code in range(32, 127)]
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("language-model")
    words = {character: index for index, character in enumerate([*CHARACTERS, "<end>"])}
    letters = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="<end>", pad_token="<end>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=len(words), eos_token_id=words["<end>"], pad_token_id=words["<end>"], **sizes, **heads)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(folder) -> Iterator[LocalModel]:
    model = LocalModel(str(folder))
    model.prepare()
    yield model
    model.close()


def asked(prompt: str) -> RewriteRequest:
    return RewriteRequest(prompt=prompt, preset=load_preset("wan2.1-t2v-14b-720p"), seconds=5.0625)


async def first_pieces(model: LocalModel, count: int) -> list[str]:
    """Return the first `count` pieces with text, then stop the answer."""
    found = []
    async with aclosing(model.stream_answer(asked("a cat"))) as pieces:
        async for piece in pieces:
            found += [piece] if piece else []
            if len(found) == count:
                break
    return found


async def whole(model: LocalModel) -> str:
    return [one async for one in stream_suggestions(model, asked("a cat"))][-1]


def test_it_writes_piece_by_piece_can_be_stopped_and_asked_again(model):
    async def twice() -> tuple[list[str], str]:
        return await first_pieces(model, 1), await whole(model)

    begun, suggestion = asyncio.run(twice())
    assert len(begun) == 1 and suggestion and set(suggestion) <= set(CHARACTERS)


def test_one_that_has_died_is_loaded_again(model):
    process = model._running.process
    process.kill()
    process.wait()
    assert asyncio.run(whole(model)) and model._running.process is not process


def test_what_is_no_model_is_told(tmp_path):
    model = LocalModel(str(tmp_path))
    with pytest.raises(StudioError, match="cannot be loaded"):
        asyncio.run(whole(model))
    model.close()
