"""Headers of safetensors files that have the wrong shape are refused in one sentence."""

import json

import pytest

from backend.checkpoints.tensors import read_header
from backend.errors import ModelError


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b"[1]",
        b'{"__metadata__": []}',
        *(
            json.dumps({"a": entry}).encode()
            for entry in (
                [],
                7,
                {},
                {"dtype": "F32", "shape": [1]},
                {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]},
                {"dtype": "F32", "shape": [[1]], "data_offsets": [0, 4]},
                {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]},
                {"dtype": "F32", "shape": [1], "data_offsets": [0]},
                {"dtype": "F32", "shape": [1], "data_offsets": ["0", "4"]},
                {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]},
            )
        ),
    ],
    ids=range(13),
)
def test_a_header_of_another_shape_is_refused(header, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(ModelError, match="its header cannot be read"):
        read_header(path)
