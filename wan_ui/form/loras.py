"""LoRAs as lines of text: "FILE", "FILE = STRENGTH" or "FILE = STRENGTH EXPERT". No file is opened."""

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from backend.errors import RequestError
from presets import LoraChoice


def format_loras(loras: Iterable[LoraChoice]) -> str:
    experts = {"both": "", "high": " high", "low": " low"}
    return "\n".join(f"{lora.source} = {lora.scale:g}{experts[lora.expert]}" for lora in loras)


def parse_loras(text: str | None) -> tuple[LoraChoice, ...]:
    """Read one LoRA from each line that is not empty. Raises: RequestError for an invalid line."""
    loras = []
    for line in filter(None, map(str.strip, (text or "").splitlines())):
        source, _, rest = line.partition("=")
        words = rest.split()
        try:
            expert: dict[str, Any] = {"expert": words[1]} if len(words) > 1 else {}  # LoraChoice validates the word
            if len(words) > 2:
                raise ValueError("too many words")
            loras.append(LoraChoice(source=source.strip(), scale=float(words[0]) if words else 1.0, **expert))
        except (ValueError, ValidationError):
            rule = "must be FILE.safetensors, and can be followed by = STRENGTH, and high or low"
            raise RequestError(f"loras={line[:80]!r}", rule, "correct the line") from None
    return tuple(loras)
