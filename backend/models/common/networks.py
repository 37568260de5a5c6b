"""Read the folders of a checkpoint, and describe the networks that a family lists for the loader."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from backend.checkpoints.json_files import AGAIN
from backend.chips import memory_bytes
from backend.errors import ModelError
from backend.models.common.modules import Encoder
from backend.models.model import ModelPlan, Network, Stage
from backend.runtime.mesh import Layout
from backend.weights.host_offload import (
    MOST_WHILE_ENCODING,
    copy_to_devices,
    describe_offloaded,
    device_bytes,
    is_offloaded,
    should_offload,
)

ENCODE: frozenset[Stage] = frozenset({"encode"})
DENOISE: frozenset[Stage] = frozenset({"denoise"})
DECODE: frozenset[Stage] = frozenset({"decode"})


def encoder_network(part: str, encoder: Encoder, plan: ModelPlan, layout: Layout, **options: Any) -> Network:
    return Network(part=part, stages=ENCODE, described=encoder.describe_weights(plan.dtype, layout), **options)


def text_network(encoder: Encoder, plan: ModelPlan, layout: Layout, others_bytes: int, **options: object) -> Network:
    """Describe the text encoder. Its weights stay in host memory if a device has too little memory for all networks.

    `others_bytes` is the size of the other networks on a device.
    """
    network = encoder_network("text_encoder", encoder, plan, layout, **options)
    own, memory = device_bytes(network.described, network.tied), memory_bytes(plan.devices[0].device_kind)
    crowds = should_offload(own + others_bytes, memory)
    return dataclasses.replace(network, described=describe_offloaded(network.described)) if crowds else network


def place_transformers(networks: Iterable[Network], plan: ModelPlan) -> tuple[Network, ...]:
    """Return the networks, with the transformers in host memory if the devices cannot hold all networks at once.

    This applies only if the text encoder is in host memory too. `backend.pipeline.denoising_loop` copies a transformer to the
    devices while its steps run.
    """
    networks = tuple(networks)
    has_guest = any(is_offloaded(network.described) for network in networks)
    all_bytes = sum(device_bytes(copy_to_devices(network.program_weights), network.tied) for network in networks)
    if not has_guest or not should_offload(all_bytes, memory_bytes(plan.devices[0].device_kind), MOST_WHILE_ENCODING):
        return networks
    return tuple(
        network if network.expert is None else dataclasses.replace(network, described=describe_offloaded(network.described))
        for network in networks
    )


def read_part(plan: ModelPlan, name: str, read: Callable) -> Any:
    """Return `read(path)` of the checkpoint's folder `name`, None without a checkpoint. Raises: ModelError if it is broken."""
    if plan.folder is None:
        return None
    try:
        if not (plan.folder / name).is_dir():
            raise FileNotFoundError
        return read(plan.folder / name)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"The checkpoint's {name} folder cannot be read", f"({type(error).__name__})", AGAIN) from error


def read_tokenizer(plan: ModelPlan, name: str = "tokenizer") -> PreTrainedTokenizerBase | None:
    return read_part(plan, name, AutoTokenizer.from_pretrained)
