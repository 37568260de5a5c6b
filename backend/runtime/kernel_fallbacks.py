"""What the runtime of this process has refused, a compile option or a kernel of ours, and is done without from then on.

A chip or a compiler that is another than those we compile for may refuse what ours take. An option that is refused is left out.
In place of a kernel that is refused XLA's own operations serve, after the model has been laid out anew (`KernelRefused`).
"""

import logging
import threading
from collections.abc import Iterable

import jax

from backend.errors import one_line
from kernels.attention import withdraw

logger = logging.getLogger(__name__)

KERNELS = {  # what uses a kernel, by the names that `pallas_call` is given: they stand in what the compiler says
    "attention_constant_maximum": "attention",
    "attention_online": "attention",
    "normalise_and_rotate": "passes",
    "shift_and_group": "passes",
    "ungroup_heads": "passes",
    "causal_conv": "convolution",
}
PLATFORMS = ("tpu",)  # where programs hold kernels of ours
ALSO = {"attention": ("attention", "passes"), "passes": ("passes",), "convolution": ("convolution",)}
"""What goes with it: the passes prepare arrays for the attention kernel alone."""
_WORDS = {
    "attention": "the attention kernel",
    "passes": "the kernels around the attention",
    "convolution": "the video decoder's kernel",
}
_REASON_LENGTH = 160
_KINDS = ("INVALID_ARGUMENT", "UNIMPLEMENTED", "NOT_FOUND")  # of errors about an option


def uses_in(text: str) -> frozenset[str]:
    """Which uses of kernels a lowered program has, by its text."""
    return frozenset(use for name, use in KERNELS.items() if name in text)


class KernelFallbacks:
    """One process's: which options and uses of kernels are done without, and why, in sentences for people."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sentences: dict[str, str] = {}  # by the option or the use

    def __contains__(self, name: str) -> bool:
        return name in self._sentences

    def sentences(self) -> tuple[str, ...]:
        """One for each refusal, the first first; shared ones once."""
        return tuple(dict.fromkeys(self._sentences.values()))

    def option_of(self, error: Exception, options: Iterable[str]) -> str | None:
        """Which of these compile options the compiler refuses with this error, from now on left out; None if it is about
        something else."""
        text = str(error)
        name = next((name for name in options if name in text), None) if text.startswith(_KINDS) else None
        if name is not None:
            self._add([name], f"The compiler of this machine does not take the option {name}: done without it")
        return name

    def kernel_of(self, error: Exception) -> str | None:
        """Which use of a kernel the compiler refuses with this error, from now on withdrawn; None if it names none of ours."""
        text = str(error)
        if "memory space hbm" in text:  # the program is too large, and its kernels are named only among what it needs
            return None
        if "pallas_call" not in text and "tpu_custom_call" not in text and "Mosaic" not in text:
            return None
        use = next((use for name, use in KERNELS.items() if name in text), None)
        if use is None or use in self:
            return None
        self._withdraw(use, "cannot be compiled here", f": {one_line(text)[:_REASON_LENGTH]}")
        return _WORDS[use]

    def withdraw(self, uses: Iterable[str], why: str) -> None:
        """From now on does without these uses of kernels, after something other than the compiler's refusal; `why` follows the
        kernel's name."""
        for use in sorted(uses, key=list(_WORDS).index):
            if use not in self:
                self._withdraw(use, why)

    def _withdraw(self, use: str, why: str, more: str = "") -> None:
        self._add(ALSO[use], f"{_WORDS[use].capitalize()} {why}, so XLA's slower operations serve instead{more}")
        if use == "attention":
            withdraw("pallas_tpu")
        jax.clear_caches()  # traces that hold the kernel

    def _add(self, names: Iterable[str], sentence: str) -> None:
        logger.warning(sentence)
        with self._lock:
            for name in names:
                self._sentences.setdefault(name, sentence)


KERNEL_FALLBACKS = KernelFallbacks()
"""Those of this process."""
