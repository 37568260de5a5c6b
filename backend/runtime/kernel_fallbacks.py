"""The compile options and Pallas kernels that this process no longer uses, because the compiler or the chip refused them.

A refused option is left out. A refused kernel raises `KernelRefused`. The model is then built again without all kernels with the
same use: "attention" (dense and block-sparse), "passes" (the kernels around it), "convolution".
"""

import dataclasses
import logging
import threading
from collections.abc import Iterable

import jax

from backend.errors import one_line
from kernels.attention import disable_implementation

logger = logging.getLogger(__name__)

# The use of each kernel, by the start of the kernel's name. The name is given to `pallas_call`, and compiler messages contain it.
KERNELS = {
    **dict.fromkeys(("attention_constant_maximum", "attention_online", "block_sparse_"), "attention"),
    **dict.fromkeys(("normalise_and_rotate", "shift_and_group", "ungroup_heads", "join_lots", "block_means"), "passes"),
    **dict.fromkeys(("largest_scores", "sum_linear_attention", "add_linear_attention"), "passes"),
    **dict.fromkeys(("layer_norm", "rms_norm", "quantize_tokens"), "passes"),
    "causal_conv": "convolution",
}
PLATFORMS = ("tpu",)  # platforms whose programs contain our kernels
WITHDRAWN_TOGETHER = {"attention": ("attention", "passes"), "passes": ("passes",), "convolution": ("convolution",)}
"""The uses that are withdrawn together: most passes prepare arrays that only the attention kernels can read."""
_WORDS = {
    "attention": "the attention kernel",
    "passes": "the kernels around the attention",
    "convolution": "the video decoder's kernel",
}
_REASON_LENGTH = 160
_KINDS = ("INVALID_ARGUMENT", "UNIMPLEMENTED", "NOT_FOUND")  # first words of errors about a compile option


def find_kernel_uses(text: str) -> frozenset[str]:
    # In the program's text, a quotation mark precedes the name of a kernel, but not the name of a function.
    return frozenset(use for name, use in KERNELS.items() if f'"{name}' in text)


@dataclasses.dataclass(eq=False)
class KernelFallbacks:
    """The compile options and the uses of kernels that one process has withdrawn, each with a sentence that tells users why."""

    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, init=False)
    # The sentence for users, by the name of the refused compile option or the use of the refused kernel, such as "attention".
    _sentences: dict[str, str] = dataclasses.field(default_factory=dict, init=False)

    def __contains__(self, name: str) -> bool:
        return name in self._sentences

    def sentences(self) -> tuple[str, ...]:
        """Return the sentences for users in the order of the refusals, without duplicates."""
        return tuple(dict.fromkeys(self._sentences.values()))

    def refuse_option(self, error: Exception, options: Iterable[str]) -> str | None:
        """Withdraw the compile option that caused this error, and return its name, None if the error has another cause."""
        text = str(error)
        name = next((name for name in options if name in text), None) if text.startswith(_KINDS) else None
        if name is not None:
            self._add_sentence(
                [name], f"The compiler of this machine does not support the option {name}, so the option is left out"
            )
        return name

    def refuse_kernel(self, error: Exception) -> str | None:
        """Withdraw the kernel that this error names, and all kernels with the same use. Return a phrase such as "the attention
        kernel".

        Return None if the error names none of our kernels, or if the use is already withdrawn.
        """
        text = str(error)
        if "memory space hbm" in text:  # the program is too large; the message names kernels, but no kernel is refused
            return None
        if "pallas_call" not in text and "tpu_custom_call" not in text and "Mosaic" not in text:
            return None
        use = next((use for name, use in KERNELS.items() if name in text and use not in self), None)
        if use is None:
            return None
        self.withdraw([use], "cannot be compiled here", f": {one_line(text)[:_REASON_LENGTH]}")
        return _WORDS[use]

    def withdraw(self, uses: Iterable[str], why: str, more: str = "") -> None:
        """Withdraw all kernels with these uses. `why` is the rest of a sentence that starts with the name of the kernels, such as
        "failed on another host". `more` is the end of the sentence."""
        for use in sorted(uses, key=list(_WORDS).index):
            if use in self:
                continue
            sentence = f"{_WORDS[use].capitalize()} {why}, so XLA's slower operations serve instead{more}"
            self._add_sentence(WITHDRAWN_TOGETHER[use], sentence)
            if use == "attention":
                disable_implementation("pallas_tpu")  # excludes the kernel in the whole process
            jax.clear_caches()  # otherwise cached traces would still run the kernel

    def _add_sentence(self, names: Iterable[str], sentence: str) -> None:
        logger.warning(sentence)
        with self._lock:
            for name in names:
                self._sentences.setdefault(name, sentence)
