"""Fingerprints distinguish the programs whose costs are stored."""

from types import SimpleNamespace

from backend.tpu_analysis.fingerprint import fingerprint_for_slice


def slice_of(kind: str, *sides: int) -> list[SimpleNamespace]:
    columns, rows, layers = (*sides, 1)[:3]
    places = [(x, y, z) for z in range(layers) for y in range(rows) for x in range(columns)]
    return [SimpleNamespace(device_kind=kind, coords=place) for place in places]


def test_the_same_text_on_other_chips_or_on_a_slice_of_another_form_is_another_program():
    slices = [slice_of("TPU v6 lite", 2, 4), slice_of("TPU v6 lite", 4, 2), slice_of("TPU v5", 2, 2, 2), slice_of("TPU7x", 2, 2, 2),
              slice_of("TPU v6 lite", 1, 1)]  # fmt: skip
    marks = [fingerprint_for_slice("text", devices) for devices in slices]
    assert len(set(marks)) == len(slices) and fingerprint_for_slice("other", slices[0]) not in marks
    assert fingerprint_for_slice("text", slices[0][::-1]) == marks[0], "the mesh's order is in the text"
