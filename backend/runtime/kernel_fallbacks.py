"""The compile options and kernels that the runtime of this process refused, which are not used from then on.

A chip or compiler other than those we compile for may refuse our options or kernels. A refused option is left out. A refused
kernel is replaced by XLA's own operations, after the model is built again (`KernelRefused`). Kernels with the same use are
replaced together. The uses are "attention", "passes" (the kernels that prepare arrays for the attention) and "convolution".
"""

import logging
import threading
from collections.abc import Iterable

import jax

from backend.errors import one_line
from kernels.attention import disable_implementation

logger = logging.getLogger(__name__)

KERNELS = {  # the use of each kernel, by the kernel's name in `pallas_call` and in the compiler's messages
    "attention_constant_maximum": "attention",
    "attention_online": "attention",
    "normalise_and_rotate": "passes",
    "shift_and_group": "passes",
    "ungroup_heads": "passes",
    "quantize_tokens": "passes",
    "causal_conv": "convolution",
}
PLATFORMS = ("tpu",)  # platforms whose programs contain our kernels
WITHDRAWN_TOGETHER = {"attention": ("attention", "passes"), "passes": ("passes",), "convolution": ("convolution",)}
"""The uses that are withdrawn together: the passes only prepare arrays for the attention kernel."""
_WORDS = {
    "attention": "the attention kernel",
    "passes": "the kernels around the attention",
    "convolution": "the video decoder's kernel",
}
_REASON_LENGTH = 160
_KINDS = ("INVALID_ARGUMENT", "UNIMPLEMENTED", "NOT_FOUND")  # first words of errors about a compile option


def find_kernel_uses(text: str) -> frozenset[str]:
    """Return the uses of the kernels that the text of a lowered program contains."""
    return frozenset(use for name, use in KERNELS.items() if name in text)


class KernelFallbacks:
    """The compile options and kernels that one process does not use, each with a sentence for users. Kernels are named by their
    use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The sentence for users, by the name of the refused compile option or the use of the refused kernel, such as "attention".
        self._sentences: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._sentences

    def sentences(self) -> tuple[str, ...]:
        """Return the sentences in the order of the refusals, equal sentences once."""
        return tuple(dict.fromkeys(self._sentences.values()))

    def refuse_option(self, error: Exception, options: Iterable[str]) -> str | None:
        """Return the compile option that caused this error, and leave it out from now on. None if the error has another cause."""
        text = str(error)
        name = next((name for name in options if name in text), None) if text.startswith(_KINDS) else None
        if name is not None:
            self._add_sentence(
                [name], f"The compiler of this machine does not support the option {name}, so the option is left out"
            )
        return name

    def refuse_kernel(self, error: Exception) -> str | None:
        """Withdraw the kernels that this error names, with all kernels of the same use. Return a phrase for the use.

        Return None if the error does not name one of our kernels, or if the use is already withdrawn.
        """
        text = str(error)
        if "memory space hbm" in text:  # the program is too large; the message names kernels, but no kernel is refused
            return None
        if "pallas_call" not in text and "tpu_custom_call" not in text and "Mosaic" not in text:
            return None
        use = next((use for name, use in KERNELS.items() if name in text), None)
        if use is None or use in self:
            return None
        self._withdraw(use, "cannot be compiled here", f": {one_line(text)[:_REASON_LENGTH]}")
        return _WORDS[use]

    def withdraw(self, uses: Iterable[str], why: str) -> None:
        """Withdraw all kernels of these uses for a reason other than a compiler error. `why` continues a sentence that starts
        with the kernel's name."""
        for use in sorted(uses, key=list(_WORDS).index):
            if use not in self:
                self._withdraw(use, why)

    def _withdraw(self, use: str, why: str, more: str = "") -> None:
        self._add_sentence(
            WITHDRAWN_TOGETHER[use], f"{_WORDS[use].capitalize()} {why}, so XLA's slower operations serve instead{more}"
        )
        if use == "attention":
            disable_implementation("pallas_tpu")  # affects the whole process, like JAX's caches of traces
        jax.clear_caches()  # otherwise cached traces would still run the kernel

    def _add_sentence(self, names: Iterable[str], sentence: str) -> None:
        logger.warning(sentence)
        with self._lock:
            for name in names:
                self._sentences.setdefault(name, sentence)
