"""Write the preview of each denoising step in a thread, while the next step runs.

A TPU runs programs in the order of their calls. The decoder's call for step k must precede the call of step k + 1, or the preview
would wait for that step. So `start_preview` returns once the decoder was called. A CPU runs programs of two threads at the
same time, so the order does not matter there.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

import jax
import numpy as np
from PIL import Image

from backend.files import replace_file
from backend.media.animation import write_animation
from backend.models.model import Model
from backend.schemas.request import GenerationRequest

PREVIEW_FOLDER = "previews"


def frames_to_uint8(frames: jax.Array) -> np.ndarray:
    """Convert frames [1, 3, F, H, W] in [-1, 1] to uint8 [F, H, W, 3]."""
    values = np.asarray(frames, np.float32)[0].transpose(1, 2, 3, 0)
    return np.round((values + 1) * 127.5).clip(0, 255).astype(np.uint8)


def find_preview(folder: Path, index: int) -> str | None:
    """Return the path of a step's preview relative to the job's folder, None if it does not exist."""
    names = (f"{PREVIEW_FOLDER}/step-{index:03d}.{ending}" for ending in ("webp", "png"))
    return next((name for name in names if (folder / name).is_file()), None)


def can_run_concurrently(model: Model, request: GenerationRequest) -> bool:
    """Return whether two of this video's programs may run at once. On a CPU that simulates several devices, two programs would
    wait for each other's threads."""
    devices = model.layout(request.is_guided).mesh.devices.ravel()
    return len(devices) == 1 or devices[0].platform != "cpu"


class StepPreviews:
    """Writes the previews of one job into `folder`, on the first host. A context manager: leaving it waits for the last preview.

    `decode` converts latents [1, C, F, h, w] to the video's first pixel frames [1, 3, F, H, W]. `fps` are latent frames per
    second. If `beside_the_next_step` is false, `start_preview` waits until the preview is written.
    """

    def __init__(
        self,
        decode: Callable[[np.ndarray], jax.Array],
        folder: Path,
        fps: float,
        beside_the_next_step: bool,
        is_first_host: bool,
    ) -> None:
        self._decode, self._folder, self._fps, self._is_beside = decode, folder, fps, beside_the_next_step
        self._is_first = is_first_host
        self._thread = ThreadPoolExecutor(1, "preview")
        (folder / PREVIEW_FOLDER).mkdir(exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def start_preview(self, clean: np.ndarray, index: int, moves: bool) -> Future[str]:
        """Start the preview of step `index` from its clean estimate [1, C, F, h, w], animated if `moves`.

        The future returns the file's path relative to the job's folder, or raises OSError if the file cannot be written.
        """
        called = threading.Event()
        preview = self._thread.submit(self._write_preview, clean, f"{PREVIEW_FOLDER}/step-{index:03d}", moves, called)
        preview.add_done_callback(lambda _: called.set())  # if the decoder's call fails, `called.wait()` must end too
        called.wait()
        if not self._is_beside:
            preview.exception()
        return preview

    def _write_preview(self, clean: np.ndarray, name: str, moves: bool, called: threading.Event) -> str:
        frames = self._decode(clean)
        called.set()
        if not self._is_first:
            return ""
        first = frames_to_uint8(frames)[0]
        if moves and clean.shape[2] > 1:
            write_animation(clean[0], first, self._folder / f"{name}.webp", self._fps)
            return f"{name}.webp"
        with replace_file(self._folder / f"{name}.png") as part:
            Image.fromarray(first).save(part, format="PNG", compress_level=1)
        return f"{name}.png"
