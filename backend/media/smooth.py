"""Raises a video's frame rate by ffmpeg's motion compensation. Cuts between shots stay cuts, and audio stays in sync."""

import json
from pathlib import Path

from backend.errors import RequestError
from backend.files import replace_file
from backend.media import ffmpeg
from backend.media import mp4 as mp4_boxes
from backend.media.clips import read_clip_facts
from backend.media.video import CODING, MAX_PIXELS, temporary_tags_file

MOST_FPS = 120
# Options of ffmpeg's minterpolate filter. With `scd`, the filter detects cuts and repeats a frame there instead of mixing shots.
_BETWEEN = "mi_mode=mci:mc_mode=aobmc:me_mode=bidir:vsbmc=1:scd=fdiff"


def write_smooth(video: Path, fps: int, path: Path) -> dict[str, int | float]:
    """Write the video with `fps` frames per second and the same length. Return its size, frame rate and number of frames. The
    audio is copied. The comment, a JSON object, gets the additional entry "smoothed": `fps`. Raises: RequestError unless `fps` is
    above the video's own rate and at most `MOST_FPS`, ClipError, VideoFileError."""
    facts = read_clip_facts(video)
    if not facts.nominal_fps < fps <= MOST_FPS:
        rule = f"must be above the video's own {facts.nominal_fps:g} and at most {MOST_FPS}"
        raise RequestError(f"fps={fps}", rule, "24, 30, 48 and 60 are usual")
    try:
        comment = json.loads(mp4_boxes.read_comment(video) or "{}")
    except ValueError:
        comment = {}
    tagged = json.dumps((comment if isinstance(comment, dict) else {}) | {"smoothed": fps})
    count = round(facts.seconds * fps)
    filters = f"tpad=stop_mode=clone:stop=2,minterpolate=fps={fps}:{_BETWEEN}"
    with replace_file(path) as part, temporary_tags_file(tagged) as tags:
        inputs = [*ffmpeg.limit_options(MAX_PIXELS), "-i", str(video), "-i", str(tags)]
        streams = ["-map", "0:v:0", "-map", "0:a:0?", "-map_metadata", "1", "-c:a", "copy"]
        line = ffmpeg.command("-y", *inputs, *streams, "-vf", filters, "-frames:v", str(count), *CODING, "-f", "mp4", str(part))
        ffmpeg.write_file(line, "the video could not be made smoother:", "give another video", video_seconds=facts.seconds)
        if facts.width % 2 or facts.height % 2:
            mp4_boxes.set_shown_size(part, facts.width, facts.height)
    return {"width": facts.width, "height": facts.height, "fps": fps, "num_frames": count}
