"""A stand-in for the parts of ComfyUI that the nodes in `integrations/comfyui` use, with the same names and arguments.

Compared with ComfyUI 0.3.64. `test_real_comfyui.py` runs the nodes in a real ComfyUI.
"""

import asyncio
import importlib.util
import io as files
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy

PACK = Path(__file__).parents[2] / "integrations" / "comfyui"


class Tensor(numpy.ndarray):
    """An array with the methods of a torch tensor that the nodes call."""

    def cpu(self) -> "Tensor":
        return self

    def numpy(self) -> numpy.ndarray:
        return numpy.asarray(self)


def tensor(values: Any) -> Tensor:
    return numpy.asarray(values, numpy.float32).view(Tensor)


@dataclass
class Input:
    """An input of a node. `kind` is the name of its type."""

    id: str
    kind: str = ""
    optional: bool = False
    default: Any = None
    options: Sequence[str] = ()
    control_after_generate: bool = False


def _type(kind: str, *arguments: str) -> SimpleNamespace:
    """Return a type whose inputs take these arguments and the arguments of all inputs."""
    allowed = {"display_name", "optional", "tooltip", "lazy", *arguments}
    kept = ("optional", "default", "options", "control_after_generate")

    def make_input(id: str, **given: Any) -> Input:
        assert given.keys() <= allowed, f"{kind} takes no {given.keys() - allowed}"
        return Input(id, kind, **{name: value for name, value in given.items() if name in kept})

    def make_output(id: str | None = None, display_name: str | None = None, tooltip: str | None = None) -> SimpleNamespace:
        return SimpleNamespace(id=id, kind=kind, display_name=display_name)

    return SimpleNamespace(Input=make_input, Output=make_output)


_NUMBER = ("default", "min", "max", "step", "control_after_generate", "display_mode")


@dataclass(kw_only=True)
class Schema:
    """The description of a node."""

    node_id: str
    display_name: str
    category: str
    description: str = ""
    inputs: list[Input] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)

    @property
    def widgets(self) -> list[Input]:
        """The inputs that have a widget on the page."""
        return [one for one in self.inputs if one.kind in ("STRING", "INT", "FLOAT", "BOOLEAN", "COMBO")]


class ComfyNode:
    """The base of nodes. ComfyUI runs `execute` of a copy of the class with `hidden`."""

    hidden: Any = None

    @classmethod
    def run(cls, **values: Any) -> tuple[Any, ...]:
        """Run the node as ComfyUI does, with the defaults of missing widgets."""
        clone = type(f"{cls.__name__}Clone", (cls,), {"hidden": SimpleNamespace(unique_id="7")})
        defaults = {one.id: one.default for one in cls.define_schema().widgets}
        return asyncio.run(clone.execute(**defaults | values)).args


class NodeOutput:
    """The outputs of a node."""

    def __init__(self, *args: Any) -> None:
        self.args = args


class ComfyExtension:
    """The base of extensions."""


class VideoFromFile:
    """A VIDEO."""

    def __init__(self, file: files.BytesIO) -> None:
        self.file = file

    def get_components(self) -> SimpleNamespace:
        return SimpleNamespace(images="images", audio="audio", frame_rate=16)

    def save_to(self, path: str, format: str, codec: str) -> None:
        assert (format, codec) == ("mp4", "auto")
        Path(path).write_bytes(self.file.getvalue())


class InterruptProcessingException(Exception):
    """The visitor of ComfyUI has interrupted the run."""


@dataclass
class ExecutionBlocker:
    """An output that stops the nodes behind it."""

    message: str


@dataclass
class ComfyUI:
    """A ComfyUI that keeps what the nodes show. `is_interrupted` is the visitor's request to stop."""

    user_directory: Path
    is_interrupted: bool = False
    progress: list[tuple[int, int, Any]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def modules(self) -> dict[str, ModuleType]:
        """Return ComfyUI's modules by name."""
        shown = self

        class ProgressBar:
            def __init__(self, total: int, node_id: str | None = None) -> None:
                assert node_id == "7"

            def update_absolute(self, value: int, total: int | None = None, preview: Any = None) -> None:
                shown.progress.append((value, total, preview))

        def send_progress_text(text: str, node_id: str, sid: str | None = None) -> None:
            assert node_id == "7"
            shown.texts.append(text)

        io = SimpleNamespace(
            ComfyNode=ComfyNode,
            NodeOutput=NodeOutput,
            Schema=Schema,
            Hidden=SimpleNamespace(unique_id="UNIQUE_ID"),
            Custom=_type,
            String=_type("STRING", "multiline", "placeholder", "default", "dynamic_prompts"),
            Int=_type("INT", *_NUMBER),
            Float=_type("FLOAT", *_NUMBER, "round"),
            Boolean=_type("BOOLEAN", "default", "label_on", "label_off"),
            Combo=_type("COMBO", "options", "default"),
            Image=_type("IMAGE"),
            Mask=_type("MASK"),
            Audio=_type("AUDIO"),
            Video=_type("VIDEO"),
        )
        kinds = {"VideoContainer": SimpleNamespace(MP4="mp4"), "VideoCodec": SimpleNamespace(AUTO="auto")}
        utils = _module(ProgressBar=ProgressBar)
        management = _module(
            InterruptProcessingException=InterruptProcessingException, processing_interrupted=lambda: self.is_interrupted
        )
        return {
            "comfy": _module(utils=utils, model_management=management),
            "comfy.utils": utils,
            "comfy.model_management": management,
            "comfy_api": _module(),
            "comfy_api.latest": _module(
                io=io,
                ComfyExtension=ComfyExtension,
                InputImpl=SimpleNamespace(VideoFromFile=VideoFromFile),
                Types=SimpleNamespace(**kinds),
            ),
            "comfy_execution": _module(),
            "comfy_execution.graph_utils": _module(ExecutionBlocker=ExecutionBlocker),
            "folder_paths": _module(get_user_directory=lambda: str(self.user_directory)),
            "server": _module(PromptServer=SimpleNamespace(instance=SimpleNamespace(send_progress_text=send_progress_text))),
        }


def _module(**members: Any) -> ModuleType:
    module = ModuleType("stand-in")
    module.__dict__.update(members)
    return module


def load_nodes() -> dict[str, type[ComfyNode]]:
    """Load the nodes as ComfyUI does, and return them by id. The stand-in's modules must be in `sys.modules`."""
    name = str(PACK).replace(".", "_x_")
    spec = importlib.util.spec_from_file_location(name, PACK / "__init__.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    async def list_nodes() -> list[type[ComfyNode]]:
        return await (await module.comfy_entrypoint()).get_node_list()

    return {node.define_schema().node_id: node for node in asyncio.run(list_nodes())}
