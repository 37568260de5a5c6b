"""What a video is called where it is shown: its prompt, or what it is if it has none."""

from backend.engine.summary import RequestSummary
from backend.schemas.settings import VideoSettings
from wan_ui.i18n.english import Texts


def video_name(request: VideoSettings | RequestSummary, texts: Texts) -> str:
    """The name of the request's video."""
    return request.prompt or texts.animated
