"""The real pipeline with a kernel in its decoder that fails when it runs, as STUDIO_TEST_KERNEL says: "raise", "kill" or "hang".

The failing kernel replaces a kernel of the project on the TPU. It has the name of that kernel, and is skipped where that kernel
is not used.
"""

import functools
import os
import signal
import time

import jax
import numpy as np

from backend.models.common.video_autoencoder import StreamedAutoencoder
from backend.pipeline.generate import generate
from backend.pipeline.load import load as load_model
from backend.pipeline.model_files import check_model as check
from backend.pipeline.warm_up import warm_up
from backend.runtime import kernel_crash_guard, program
from backend.runtime.context import RuntimeContext
from backend.runtime.devices import device_facts
from backend.settings import from_environment
from tests import fake_pipeline

__all__ = ["check", "device_facts", "generate", "load", "warm_up"]
__getattr__ = functools.partial(getattr, fake_pipeline)  # other names come from the stand-in pipeline

program.PLATFORMS = ("cpu",)
find_kernel_uses = program.find_kernel_uses
# On a processor the failing kernel is a function of the program, which is named with "@". The text of a TPU's program has the
# kernel's name after a quotation mark.
program.find_kernel_uses = lambda text: find_kernel_uses(text.replace("@causal_conv", '"causal_conv'))
kernel_crash_guard.HANGS_SECONDS = 3.0
RUNTIME = RuntimeContext()
load = functools.partial(load_model, runtime=RUNTIME)
refusals, forget_running_kernels = RUNTIME.fallbacks.sentences, RUNTIME.crash_guard.forget_recent_runs
disable_crashed_kernels = functools.partial(RUNTIME.crash_guard.withdraw_recorded, from_environment().kernels_dir)


def _fail(latents: np.ndarray) -> np.ndarray:
    how = os.environ["STUDIO_TEST_KERNEL"]
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "hang":
        time.sleep(600)
    raise ValueError("the kernel is broken")


@jax.jit
def causal_conv(latents: jax.Array) -> jax.Array:
    return jax.pure_callback(_fail, jax.ShapeDtypeStruct(latents.shape, latents.dtype), latents)


_plain = StreamedAutoencoder.decode_first


def _decode_first(self, weights, latents, before=None):
    return _plain(self, weights, latents if "convolution" in RUNTIME.fallbacks else causal_conv(latents), before)


StreamedAutoencoder.decode_first = _decode_first
