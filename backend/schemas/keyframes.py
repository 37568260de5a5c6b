"""Key frames of a request: pictures that are given frames of the video. Checks, and opens no file."""

from backend.errors import RequestError
from backend.schemas.settings import VideoSettings


def appended_frames(request: VideoSettings) -> tuple[int, ...]:
    """The pixel frames after the first that a picture is given for, in the order of `keyframes`, the last picture's at the end:
    LTX-2 appends these pictures to the video's tokens."""
    last = (request.num_frames - 1,) if request.last_image else ()
    return (*filter(None, request.keyframe_at), *last)


def check_keyframes(request: VideoSettings) -> None:
    """Raises: RequestError for a key frame without a place, outside the video, or where another picture is."""
    if len(request.keyframes) != len(request.keyframe_at):
        given = f"{len(request.keyframes)} keyframes were given with {len(request.keyframe_at)} places"
        raise RequestError(given, "and each must have one", "say for each its frame's number, counted from 0")
    last = request.num_frames - 1
    taken = {place for place, path in ((0, request.image), (last, request.last_image)) if path}
    for place in request.keyframe_at:
        if not 0 <= place <= last:
            rule = f"must lie in the video's {request.num_frames} frames, 0 to {last}"
            raise RequestError(f"the key frame at {place}", rule, f"{last} is the last one")
        if place in taken:
            raise RequestError(f"two key frames at {place} were given, and", "a frame can have one", "move or leave out one")
        taken.add(place)
