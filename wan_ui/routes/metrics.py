"""`/healthz` for whoever watches over the server, and `/metrics` in Prometheus' text format.

Both carry counts only: no prompt, no name. Where visitors need a password, `/metrics` needs the operator's key as a bearer
token ("Authorization: Bearer KEY", the key from the operator's link).
"""

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from backend.contract.worker import Device
from backend.engine.engine import Engine
from wan_ui.desk.access import Access

STATES = ("queued", "running", "finished", "failed", "cancelled")


def health_route(engine: Engine) -> Route:
    """200 while the studio can make videos or is about to, 503 when its worker has failed."""

    def health(request: Request) -> Response:
        status = engine.worker_status()
        return JSONResponse({"worker": status.state, "waiting": len(engine.line())}, 503 if status.state == "failed" else 200)

    return Route("/healthz", health, methods=["GET"])


def metrics_route(engine: Engine, access: Access, *, is_open: bool) -> Route:
    """Counters and gauges of the queue, the worker and its devices."""

    def metrics(request: Request) -> Response:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not is_open and not access.is_key(token):
            return PlainTextResponse("The operator's key is needed as a bearer token", 401, {"WWW-Authenticate": "Bearer"})
        return PlainTextResponse(metrics_text(engine), media_type="text/plain; version=0.0.4")

    return Route("/metrics", metrics, methods=["GET"])


def metrics_text(engine: Engine) -> str:
    """All metrics. Source: prometheus.io/docs/instrumenting/exposition_formats, text format 0.0.4."""
    counts, status, facts = engine.library.counts(), engine.worker_status(), engine.worker_facts()
    lines = ["# HELP studio_jobs Jobs in the store by state.", "# TYPE studio_jobs gauge"]
    lines += [f'studio_jobs{{state="{state}"}} {counts.get(state, 0)}' for state in STATES]
    lines += [
        "# HELP studio_worker_ready Whether the worker can make a video now.",
        "# TYPE studio_worker_ready gauge",
        f"studio_worker_ready {int(status.state in ('ready', 'busy'))}",
        "# HELP studio_warm_shapes Sizes whose programs are compiled.",
        "# TYPE studio_warm_shapes gauge",
        f"studio_warm_shapes {len(facts.warm)}",
    ]
    for name, what in (("bytes_in_use", "in use"), ("bytes_limit", "there")):
        lines += _device_lines(name, what, facts.devices)
    return "\n".join(lines) + "\n"


def _device_lines(name: str, what: str, devices: tuple[Device, ...]) -> list[str]:
    rows = [
        f'studio_device_{name}{{device="{_escaped(device.name)}"}} {value}'
        for device in devices
        if (value := getattr(device, name)) is not None
    ]
    if not rows:
        return []
    return [f"# HELP studio_device_{name} Memory {what} on a device.", f"# TYPE studio_device_{name} gauge", *rows]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
