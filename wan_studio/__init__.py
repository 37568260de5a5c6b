"""Generate videos from Python and from notebooks: `Studio.local()` or `Studio.connect(url, key)`.

    from wan_studio import Studio

    with Studio.local() as studio:
        video = studio.generate("a red circle moving right", preset="wan-tiny", seed=1)
        print(video.path)

The package is a client. The server is a separate process and may have another Python environment. So the package imports
neither jax nor torch, and a notebook's kernel does not open the chips. The reference is docs/python.md.
"""

from wan_studio.errors import RequestRefused, StudioError, VideoCancelled, VideoFailed
from wan_studio.events import Event
from wan_studio.settings import Settings
from wan_studio.studio import Job, Studio
from wan_studio.video import Audio, Video

__all__ = [
    "Audio",
    "Event",
    "Job",
    "RequestRefused",
    "Settings",
    "Studio",
    "StudioError",
    "Video",
    "VideoCancelled",
    "VideoFailed",
]
