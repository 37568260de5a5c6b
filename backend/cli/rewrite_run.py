"""Rewrite prompts with a language model on this machine's processor, for `serve --rewriter-model`.

`backend.prompt_rewriting.local_model` starts this module with the model's source, and describes the messages. Only safetensors
files are loaded, and no code from the model's folder runs.
"""

import base64
import io
import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from PIL import Image

from backend.child_process import write_message
from backend.errors import one_line
from backend.imports import TORCHVISION, hide_library

FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
MOST_TOKENS = 1500
TEMPERATURE, TOP_P = 0.7, 0.9
NICE = 5  # lower process priority, so that videos are not slowed down


class Model:
    """A chat model and its tokenizer. A model that reads images (`sees`) has a processor instead of a tokenizer."""

    def __init__(self, source: str) -> None:
        hide_library(TORCHVISION)
        import torch
        import transformers

        folder = source if Path(source).is_dir() else snapshot_download(source, allow_patterns=FILES, ignore_patterns=["*/*"])
        options: dict[str, Any] = {"dtype": "auto", "use_safetensors": True, "trust_remote_code": False}
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        self.sees = hasattr(config, "vision_config")
        model_class = transformers.AutoModelForImageTextToText if self.sees else transformers.AutoModelForCausalLM
        reader = transformers.AutoProcessor if self.sees else transformers.AutoTokenizer
        self._reader = reader.from_pretrained(folder, trust_remote_code=False)
        self._model = model_class.from_pretrained(folder, **options).eval()
        self._torch, self._transformers = torch, transformers

    def answer(
        self, messages: list[dict[str, Any]], picture: str | None, on_piece: Callable[[str], None], is_stopped: Callable[[], bool]
    ) -> None:
        """Generate an answer, and pass each piece of text to `on_piece`. Stop early if `is_stopped` returns true.

        A model that reads images gets the content of each message as a list, and the image in the last message.
        """
        if self.sees:
            messages = [one | {"content": [{"type": "text", "text": one["content"]}]} for one in messages]
            if picture:
                data = base64.b64decode(picture.partition(",")[2])
                messages[-1]["content"].insert(0, {"type": "image", "image": Image.open(io.BytesIO(data)).convert("RGB")})
        inputs = self._reader.apply_chat_template(
            messages,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            enable_thinking=False,  # templates without this option ignore it
        )

        class PieceStreamer(self._transformers.TextStreamer):
            def on_finalized_text(streamer, text: str, stream_end: bool = False) -> None:
                if text:
                    on_piece(text)

        class Stop(self._transformers.StoppingCriteria):
            def __call__(criterion, input_ids: Any, scores: object, **more: object) -> Any:
                return self._torch.full((len(input_ids),), is_stopped(), dtype=self._torch.bool)

        with self._torch.inference_mode():
            self._model.generate(
                **inputs,
                streamer=PieceStreamer(
                    getattr(self._reader, "tokenizer", self._reader), skip_prompt=True, skip_special_tokens=True
                ),
                max_new_tokens=MOST_TOKENS,
                do_sample=True,
                temperature=TEMPERATURE,
                top_p=TOP_P,
                stopping_criteria=self._transformers.StoppingCriteriaList([Stop()]),
            )


def _read_messages(questions: "queue.Queue[dict[str, Any]]", stopped: set[int]) -> None:
    """Read messages until standard input ends, then exit the process. A message asks a question, or stops the answer to one."""
    for line in sys.stdin:
        message = json.loads(line)
        if "stop" in message:
            stopped.add(message["stop"])
        else:
            questions.put(message)
    os._exit(0)


def main(source: str) -> None:
    """Load the model, then answer questions until standard input ends. Return if the model cannot be loaded."""
    os.nice(NICE)
    questions: queue.Queue[dict[str, Any]] = queue.Queue()
    stopped: set[int] = set()
    threading.Thread(target=_read_messages, args=(questions, stopped), daemon=True).start()
    try:
        model = Model(source)
    except Exception as error:  # a model's files can cause errors of any type; the waiting caller receives the message
        failure = one_line(f"the model {source} cannot be loaded: {error}")[:240]
        sys.stderr.write(failure + "\n")
        write_message({"error": failure})
        return
    while True:
        message = questions.get()
        number = message["ask"]
        try:
            model.answer(
                message["messages"],
                message["picture"],
                lambda text, number=number: write_message({"ask": number, "text": text}),
                lambda number=number: number in stopped,
            )
            write_message({"ask": number, "end": True})
        except Exception as error:
            write_message({"ask": number, "error": one_line(str(error))[:240]})


if __name__ == "__main__":
    main(sys.argv[1])
