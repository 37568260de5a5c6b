"""Check the input of the control blocks in each use, pixel by pixel, and which pixels of a clip come back."""

import numpy as np
import pytest
from PIL import Image

from backend.errors import ClipError
from backend.media.clips import read_part
from backend.media.control import control_frame
from backend.media.masks import check_mask_shape, read_mask
from backend.media.pictures import fit_on_white
from backend.media.source import GREY, KeptPixels, build_source
from backend.schemas.clip import Part
from backend.schemas.request import GenerationRequest
from presets import load_preset
from tests.clip_files import counting_clip, numbers

VACE = load_preset("wan2.1-vace-1.3b-480p")
SIZE = {"width": 256, "height": 256, "num_frames": 9}


def request(**changes) -> GenerationRequest:
    return GenerationRequest.from_preset(VACE, prompt="x", seed=1, **SIZE | changes)


def clip(num_frames: int = 9, size: tuple[int, int] = (256, 256)) -> np.ndarray:
    """Frame i has the value i + 1 everywhere."""
    return np.stack([np.full((size[1], size[0], 3), index + 1, np.uint8) for index in range(num_frames)])


def test_without_frames_there_is_no_source():
    assert build_source(request(), {}) is None
    assert build_source(request(references=("/r.png",)), {"references": (Image.new("RGB", (256, 256)),)}) is None


def test_a_control_clip_is_regenerated_all_over():
    source = build_source(request(control="/c.mp4"), {"control": (clip(),)})
    assert source.is_new.all() and (source.frames == clip()).all()


def test_a_mask_leaves_grey_where_it_is_white_or_what_the_control_clip_shows_there():
    mask = np.zeros((9, 256, 256), bool)
    mask[:, 10:20, 30:50] = True
    given = request(video="/v.mp4", mask="/m.png")
    source = build_source(given, {"video": (clip(),), "mask": (mask,)})
    assert (source.is_new == mask).all()
    assert (source.frames[mask] == GREY).all() and (source.frames[~mask] == clip()[~mask]).all()
    both = build_source(given.with_changes(control="/c.mp4"), {"video": (clip(),), "mask": (mask,), "control": (clip() + 100,)})
    assert (both.frames[mask] == (clip() + 100)[mask]).all() and (both.frames[~mask] == clip()[~mask]).all()


def test_margins_are_new_and_the_clip_lies_between_them():
    given = request(video="/v.mp4", margins=(16, 32, 48, 0))
    assert Part.from_request(given).size == Part.from_request(given, "mask").size == (192, 224) and Part.from_request(
        given, "control"
    ).size == (256, 256)
    source = build_source(given, {"video": (clip(size=(192, 224)),)})
    inner = np.zeros((256, 256), bool)
    inner[32:, 16:208] = True
    assert (source.is_new == ~inner).all() and (source.frames[4][inner] == 5).all()


@pytest.mark.parametrize(("extend", "known"), [("after", range(5)), ("before", range(4, 9))])
def test_a_clip_continues_after_its_end_or_leads_up_to_its_beginning(extend, known):
    source = build_source(request(video="/v.mp4", extend=extend, overlap=5), {"video": (clip(5),)})
    assert [index for index in range(9) if not source.is_new[index].any()] == list(known)
    assert [source.frames[index, 0, 0, 0] for index in known] == [1, 2, 3, 4, 5]


def test_key_frames_stand_in_their_places():
    pictures = tuple(Image.new("RGB", (256, 256), (value,) * 3) for value in (10, 20, 30))
    source = build_source(request(keyframes=("/a", "/b", "/c"), keyframe_at=(0, 4, 8)), {"keyframes": pictures})
    assert [int(frame.mean()) for frame in source.frames] == [10, *[GREY] * 3, 20, *[GREY] * 3, 30]
    assert [bool(new.all()) for new in source.is_new] == [index not in (0, 4, 8) for index in range(9)]


def test_the_last_and_the_first_frames_of_a_clip_are_found(tmp_path):
    path = counting_clip(tmp_path / "clip.mp4", 48, 16, (256, 256))
    for changes, first in (
        ({"extend": "after"}, 43),
        ({"extend": "before"}, 0),
        ({"extend": "after", "trim": (0.0, 2.0)}, 27),
        ({"extend": "before", "trim": (1.0, 3.0)}, 16),
    ):
        part = Part.from_request(request(video=str(path), overlap=5, **changes))
        assert numbers(read_part(path, part)) == list(range(first, first + 5))
    with pytest.raises(ClipError, match=r"must be within the 3\.00 s"):
        read_part(path, Part.from_request(request(video=str(path), overlap=5, extend="after", trim=(0.0, 9.0))))
    short = counting_clip(tmp_path / "short.mp4", 3, 16, (256, 256))
    with pytest.raises(ClipError, match="it has 3 frames"):
        read_part(short, Part.from_request(request(video=str(short), overlap=5, extend="after")))


def test_what_was_not_regenerated_comes_back_to_the_last_bit():
    mask = np.zeros((9, 256, 256), bool)
    mask[:, 100:150, 100:150] = True
    kept = KeptPixels(request=request(video="/v.mp4", mask="/m.png"), inputs={"video": (clip(),), "mask": (mask,)})
    made = np.full((4, 256, 256, 3), 200, np.uint8)
    back = kept.put_back(made, 5)
    own = clip()[5:]
    assert (back[~mask[5:]] == own[~mask[5:]]).all()
    assert (back[:, 102:148, 102:148] == 200).all()
    edge = back[0, 100, 120]
    assert (own[0, 0, 0] < edge).all() and (edge < 200).all() and (made == 200).all()


def test_margins_and_new_frames_stay_as_they_were_made():
    made = np.full((9, 256, 256, 3), 200, np.uint8)
    wider = KeptPixels(request=request(video="/v.mp4", margins=(16, 0, 0, 0)), inputs={"video": (clip(size=(240, 256)),)})
    back = wider.put_back(made, 0)
    assert (back[:, :, :16] == 200).all() and (back[2, :, 16:] == 3).all()
    longer = KeptPixels(request=request(video="/v.mp4", extend="before", overlap=4), inputs={"video": (clip(4),)})
    assert [int(frame.mean()) for frame in longer.put_back(made, 0)] == [200] * 5 + [1, 2, 3, 4]


def test_a_thin_mask_is_seen_too():
    mask = np.zeros((9, 256, 256), bool)
    mask[:, :, 80] = True
    kept = KeptPixels(request=request(video="/v.mp4", mask="/m.png"), inputs={"video": (clip(),), "mask": (mask,)})
    assert (kept.put_back(np.full((1, 256, 256, 3), 200, np.uint8), 0)[0, :, 80] > 90).all()


def test_a_mask_may_be_a_picture_or_a_clip_of_another_size(tmp_path):
    white = np.zeros((64, 64), np.uint8)
    white[:, 32:] = 255
    picture = tmp_path / "mask.anything"
    Image.fromarray(white).save(picture, format="PNG")
    moving = counting_clip(tmp_path / "mask.mp4", 48, 16, (64, 64))  # grey level 16 + 4 i: white from frame 28 on
    part = Part.from_request(request(video="/v.mp4", mask=str(picture), trim=(1.5, 1.5 + 9 / 16)), "mask")
    still = read_mask(picture, part)
    assert still.shape == (9, 256, 256) and still[:, :, 130:].all() and not still[:, :, :126].any()
    assert [bool(frame.all()) for frame in read_mask(moving, part)] == [24 + index >= 28 for index in range(9)]
    own = counting_clip(tmp_path / "clip.mp4", 20, 16, (128, 128))
    check_mask_shape(picture, own)
    check_mask_shape(moving, own)
    wide = tmp_path / "wide.png"
    Image.new("L", (64, 48)).save(wide)
    with pytest.raises(ClipError, match=r"mask 'wide\.png' has 64x48 pixels and must have the shape of the clip, 128x128; make"):
        check_mask_shape(wide, own)
    nothing = tmp_path / "mask.txt"
    nothing.write_text("no mask")
    with pytest.raises(ClipError, match=r"'mask\.txt' must be a video"):
        check_mask_shape(nothing, own)


def test_edges_are_thin_lines_and_grey_is_grey():
    frame = np.zeros((64, 64, 3), np.uint8)
    frame[16:48, 20:44] = (200, 40, 40)
    lines = control_frame(frame, "edges")
    assert set(np.unique(lines)) == {0, 255} and (lines[..., 0] == lines[..., 2]).all()
    drawn = lines[..., 0] > 0
    rows, columns = np.nonzero(drawn)
    assert 14 <= rows.min() <= 17 and 46 <= rows.max() <= 49 and 18 <= columns.min() <= 21 and 42 <= columns.max() <= 45
    assert 90 < drawn.sum() < 260 and not drawn[22:42, 26:38].any()
    frame[:] = (0, 90, 0)
    frame[16:48, 20:44] = (0, 45, 232)  # as light, but of another colour
    assert np.asarray(Image.fromarray(frame).convert("L")).std() < 1 and control_frame(frame, "edges")[16:48, 19:22].any()
    frame[:] = 0
    frame[16:48, 20:44] = (200, 40, 40)
    grey = control_frame(frame, "grey")
    assert (grey[..., 0] == grey[..., 1]).all() and 60 < grey[30, 30, 0] < 110
    assert control_frame(frame, "as-is") is frame


def test_a_reference_is_whole_on_white():
    wide = fit_on_white(Image.new("RGB", (100, 25), "navy"), 64, 64)
    pixels = np.asarray(wide)
    assert wide.size == (64, 64) and (pixels[:24] == 255).all() and (pixels[40:] == 255).all()
    assert (pixels[26:38] == np.array([0, 0, 128])).all()
