import pytest

from backend.errors import ImageError, RequestError
from wan_ui.components.field_errors import error_place, error_sentence, note_html


@pytest.mark.parametrize(
    ("error", "place"),
    [
        (RequestError("prompt is empty and", "must say something"), "prompt"),
        (RequestError("negative_prompt has 9000 characters"), "prompt"),
        (RequestError("image is missing:", "image to video starts from one"), "image"),
        (ImageError("picture.png is damaged"), "image"),
        (RequestError("num_frames=80", "must be 4n+1", "nearest: 77 or 81"), "settings"),
        (RequestError("(odd) message"), "settings"),
    ],
)
def test_an_error_stands_beside_its_cause(error, place):
    assert error_place(error) == place


def test_a_note_is_a_sentence_and_escaped():
    assert error_sentence(RequestError("width=3 is <small>")) == "Width=3 is <small>."
    assert "&lt;small&gt;" in note_html("<small>")


def test_empty_notes_are_hidden():
    assert " hidden>" in note_html()
    assert "hidden" not in note_html("wrong")
