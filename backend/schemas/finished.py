"""Requests that only upscale a finished video. This module opens no file."""

from backend.errors import RequestError
from backend.schemas.events import VideoResult
from backend.schemas.request import GenerationRequest
from backend.schemas.upscaling import FOREIGN, check_upscale
from presets import load_preset
from presets.loader import OPENING

MOST_FPS = 1000


def upscale_request(made: GenerationRequest, video: str, scale: int, upscaler: str = "") -> GenerationRequest:
    """Return the request that enlarges the file `video` by the factor `scale`. The new request keeps the settings of `made`,
    which generated the video. If `made` already upscaled it, the new request keeps only the prompt, size, length and frame rate.
    Raises: RequestError."""
    if made.upscale:
        width, height = made.final_size
        made = describe_clip(made.prompt, width, height, made.total_frames, made.fps)
    values = made.to_json() | {"upscale": scale, "upscaler": upscaler, "finished_video": video}
    request = GenerationRequest.from_stored(values)
    if not request.upscale:
        raise RequestError("upscale=0", "must be 2 or 4", "choose 2 or 4")
    check_upscale(request)
    return request


def upscale_result_request(
    result: VideoResult, made: GenerationRequest, video: str, scale: int, upscaler: str = ""
) -> GenerationRequest:
    """The settings of `made` are not kept if `result` has another size or length, for example because the job was stopped.
    Raises: RequestError."""
    is_whole = (result.num_frames, result.fps) == (made.total_frames, made.fps)
    if not is_whole or (result.width, result.height) != made.final_size:
        made = describe_clip(made.prompt, result.width, result.height, result.num_frames, result.fps)
    return upscale_request(made, video, scale, upscaler)


def upscale_clip_request(
    name: str, size: tuple[int, int], seconds: float, fps: float, video: str, scale: int, upscaler: str = ""
) -> GenerationRequest:
    """Return the request that upscales any clip. `name` becomes the prompt. The rate is rounded. Raises: RequestError."""
    rate = min(max(1, round(fps)), MOST_FPS)
    num_frames = max(1, int(seconds * rate + 0.01))
    return upscale_request(describe_clip(name, *size, num_frames, rate), video, scale, upscaler)


def describe_clip(name: str, width: int, height: int, num_frames: int, fps: int) -> GenerationRequest:
    """Return a request that describes a clip but not how it was generated."""
    values = load_preset(OPENING).model_dump(include=set(GenerationRequest.model_fields))
    of_clip = {"preset": FOREIGN, "task": "t2v", "prompt": name, "negative_prompt": "", "seed": 0, "loras": ()}
    sizes = {"width": width, "height": height, "num_frames": num_frames, "fps": fps}
    return GenerationRequest.from_stored(values | of_clip | sizes)
