"""Checks of keyframes in a request: images for given frames of the video. This module opens no file."""

from backend.errors import RequestError
from backend.schemas.settings import VideoSettings


def appended_frames(request: VideoSettings) -> tuple[int, ...]:
    """Return the indices of the pixel frames that have an image: all keyframes except frame 0, in the order of `keyframes`, then
    the last frame if the request has `last_image`.

    LTX-2 appends these images to the tokens of the video.
    """
    last = (request.num_frames - 1,) if request.last_image else ()
    return (*filter(None, request.keyframe_at), *last)


def check_keyframes(request: VideoSettings) -> None:
    """Check that each keyframe is at a frame of the video, and that no frame has two images. Raises: RequestError."""
    if len(request.keyframes) != len(request.keyframe_at):
        given = f"{len(request.keyframes)} keyframes were given with {len(request.keyframe_at)} frame numbers"
        raise RequestError(given, "and each keyframe must have one", "give each keyframe a frame number, counted from 0")
    last = request.num_frames - 1
    taken = {place for place, path in ((0, request.image), (last, request.last_image)) if path}
    for place in request.keyframe_at:
        if not 0 <= place <= last:
            rule = f"must be one of the video's {request.num_frames} frames, 0 to {last}"
            raise RequestError(f"the keyframe at {place}", rule, f"{last} is the last frame")
        if place in taken:
            raise RequestError(f"two images for frame {place} were given, and", "a frame can have one", "move or leave out one")
        taken.add(place)
