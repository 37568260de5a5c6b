"""LoRAs as lines of text: "FILE", "FILE = STRENGTH" or "FILE = STRENGTH EXPERT". No file is opened."""

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from backend.errors import RequestError
from presets import LoraChoice


def format_loras(loras: Iterable[LoraChoice]) -> str:
    """Return one line for each LoRA."""
    return "\n".join(_format_line(lora) for lora in loras)


def parse_loras(text: str | None) -> tuple[LoraChoice, ...]:
    """Read one LoRA from each line that is not empty. Raises: RequestError for an invalid line."""
    return tuple(_parse_line(line.strip()) for line in (text or "").splitlines() if line.strip())


def _format_line(lora: LoraChoice) -> str:
    expert = "" if lora.expert == "both" else f" {lora.expert}"
    return f"{lora.source} = {lora.scale:g}{expert}"


def _parse_line(line: str) -> LoraChoice:
    source, _, rest = line.partition("=")
    words = rest.split()
    try:
        expert: dict[str, Any] = {"expert": words[1]} if len(words) > 1 else {}  # LoraChoice validates the word
        if len(words) > 2:
            raise ValueError("too many words")
        return LoraChoice(source=source.strip(), scale=float(words[0]) if words else 1.0, **expert)
    except (ValueError, ValidationError):
        raise RequestError(
            f"loras={line[:80]!r}",
            "must be FILE.safetensors, and can be followed by = STRENGTH, and high or low",
            "correct the line",
        ) from None
