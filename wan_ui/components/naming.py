"""The name of a video wherever the page shows one."""

from backend.engine.summary import RequestSummary
from backend.schemas.settings import VideoSettings
from wan_ui.i18n.english import Texts


def video_name(request: VideoSettings | RequestSummary, texts: Texts) -> str:
    """Return the request's prompt, or a general name if the prompt is empty."""
    return request.prompt or texts.animated
