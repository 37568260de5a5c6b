"""Run a PyTorch function as one operation of a compiled CPU program. The function reads and writes XLA's buffers in place.

The operation is a named custom call, because JAX's persistent compilation cache excludes programs with `jax.pure_callback`. The
structures belong to XLA's foreign function interface (FFI), version 0, in `xla/ffi/api/c_api.h` in `jax.ffi.include_dir()`.
"""

import ctypes
import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import torch

_API_VERSION = (0, 3)
_METADATA_EXTENSION = 1
_INTERNAL_ERROR = 13
_DTYPES = {11: torch.float32, 16: torch.bfloat16}  # keys are values of XLA_FFI_DataType


@dataclasses.dataclass(frozen=True)
class TorchCall:
    """A PyTorch `function(result, *operands)` on tensors, which fills `result`.

    `name` must be unique, also among programs that another process has compiled. The function runs in one of XLA's threads. It
    must not keep its tensors or call jax. The program raises the function's error as jax.errors.JaxRuntimeError.
    """

    name: str
    function: Callable[..., None]

    def __call__(self, result: jax.ShapeDtypeStruct, *operands: jax.Array) -> jax.Array:
        """Return the array that the function fills. All arrays must be float32 or bfloat16, and the program must be for a CPU."""
        _register(self)
        return jax.ffi.ffi_call(self.name, result, vmap_method="sequential")(*operands)


@functools.cache
def _register(call: TorchCall) -> object:
    """Register the call with XLA, once, and return the C function that XLA calls. The cache keeps it alive."""
    handler = _Handler(functools.partial(_handle, call))
    jax.ffi.register_ffi_target(call.name, jax.ffi.pycapsule(handler), platform="cpu")
    return handler


class _Struct(ctypes.Structure):
    """The fields with which every structure of XLA's interface starts."""

    _fields_ = (("struct_size", ctypes.c_size_t), ("extensions", ctypes.c_void_p))


class _Extension(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("type", ctypes.c_int), ("next", ctypes.c_void_p))


class _ApiVersion(_Struct):
    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int))


class _Metadata(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("api_version", _ApiVersion),
        ("traits", ctypes.c_uint32),
        ("state", ctypes.c_int64),
    )


class _MetadataExtension(ctypes.Structure):
    _fields_ = (("base", _Extension), ("metadata", ctypes.POINTER(_Metadata)))


class _Buffer(_Struct):
    _fields_ = (
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    )


class _Buffers(_Struct):
    """The structures XLA_FFI_Args and XLA_FFI_Rets, which have the same fields."""

    _fields_ = (("size", ctypes.c_int64), ("types", ctypes.c_void_p), ("values", ctypes.POINTER(ctypes.POINTER(_Buffer))))


class _ErrorArguments(_Struct):
    _fields_ = (("message", ctypes.c_char_p), ("code", ctypes.c_int))


class _Api(_Struct):
    """The first fields of XLA_FFI_Api."""

    _fields_ = (
        ("api_version", _ApiVersion),
        ("internal", ctypes.c_void_p),
        ("create_error", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorArguments))),
    )


class _CallFrame(_Struct):
    """The first fields of XLA_FFI_CallFrame. The C struct continues with `attrs` and `future`, which are not needed here."""

    _fields_ = (
        ("api", ctypes.POINTER(_Api)),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("operands", _Buffers),
        ("results", _Buffers),
    )


_Handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_CallFrame))


def _handle(call: TorchCall, frame_pointer) -> int | None:
    """Run the call, or report the FFI's version if XLA requests it. Returns: None, or the address of an error."""
    frame = frame_pointer.contents
    extension = ctypes.cast(frame.extensions, ctypes.POINTER(_MetadataExtension))
    if extension and extension.contents.base.type == _METADATA_EXTENSION:
        metadata = extension.contents.metadata.contents
        metadata.api_version.major, metadata.api_version.minor = _API_VERSION
        metadata.traits = metadata.state = 0
        return None
    try:
        with torch.inference_mode():
            buffers = (
                all_of.values[index].contents for all_of in (frame.results, frame.operands) for index in range(all_of.size)
            )
            call.function(*map(_as_tensor, buffers))
        return None
    except BaseException as error:  # even KeyboardInterrupt: XLA calls this function, so no Python code could catch the error
        text = f"{call.name}: {type(error).__name__}: {error}".encode()
        arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, text, _INTERNAL_ERROR)
        return frame.api.contents.create_error(ctypes.byref(arguments))


def _as_tensor(buffer: _Buffer) -> torch.Tensor:
    """Return a tensor that uses the buffer's memory, without a copy."""
    shape, dtype = buffer.dims[: buffer.rank], _DTYPES[buffer.dtype]
    size_bytes = math.prod(shape) * dtype.itemsize
    return torch.frombuffer((ctypes.c_char * size_bytes).from_address(buffer.data), dtype=dtype).reshape(shape)
