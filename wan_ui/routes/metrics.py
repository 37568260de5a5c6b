"""`/healthz` for programs that watch the server, and `/metrics` in Prometheus' text format.

If there are several workers, each has its own lines with its name as the label `worker`, and `/healthz` lists their states.
Both show counts only: no prompt, no visitor's name. If visitors need a password, `/metrics` needs the operator's key as a bearer
token ("Authorization: Bearer KEY", the key from the operator's link).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from backend.engine.engine import Engine
from backend.schemas.worker import WorkerView
from wan_ui.gateway.access import Access

STATES = ("queued", "running", "finished", "failed", "cancelled")


def health_route(engine: Engine, access: Access, *, is_open: bool) -> Route:
    """200 while the studio can make videos or is about to, 503 when all its workers have failed or the disk has no room.

    `detail` says which accelerator is here and not used, and how to fix that. If visitors need a password, the length of the
    queue is for the operator's key only."""

    def health(request: Request) -> Response:
        state, workers = engine.worker_status().state, engine.workers()
        answer: dict[str, Any] = {"worker": state}
        if is_open or access.has_key(request.headers):
            answer["waiting"] = len(engine.waiting_job_ids())
        if faults := dict.fromkeys(str(one.facts.notice) for one in workers if one.facts.notice and one.facts.notice.is_fault):
            answer["detail"] = "; ".join(faults)
        if (short := engine.disk_shortage()) is not None:
            answer["disk"] = str(short)
        if len(workers) > 1:
            answer["workers"] = {worker.name: worker.status.state for worker in workers}
        return JSONResponse(answer, 503 if state == "failed" or short else 200)

    return Route("/healthz", health, methods=["GET"])


def metrics_route(engine: Engine, access: Access, *, is_open: bool) -> Route:
    """Counters and gauges of the queue, the worker and its devices."""

    def metrics(request: Request) -> Response:
        if not is_open and not access.has_key(request.headers):
            return PlainTextResponse("The operator's key is needed as a bearer token", 401, {"WWW-Authenticate": "Bearer"})
        return PlainTextResponse(metrics_text(engine), media_type="text/plain; version=0.0.4")

    return Route("/metrics", metrics, methods=["GET"])


def metrics_text(engine: Engine) -> str:
    """All metrics. Source: prometheus.io/docs/instrumenting/exposition_formats, text format 0.0.4."""
    counts, workers = engine.library.counts(), engine.workers()
    lines = _gauge("studio_jobs", "Jobs in the store by state.", [({"state": state}, counts.get(state, 0)) for state in STATES])
    ready = [(_names(worker, workers), int(worker.status.state in ("ready", "busy"))) for worker in workers]
    lines += _gauge("studio_worker_ready", "Whether the worker can make a video now.", ready)
    warm = [(_names(worker, workers), len(worker.facts.warm)) for worker in workers]
    lines += _gauge("studio_warm_shapes", "Sizes whose programs are compiled.", warm)
    lines += _gauge(
        "studio_queue_paused", "Whether the queue waits for room on the disk.", [({}, int(bool(engine.disk_shortage())))]
    )
    for name, what in (("bytes_in_use", "in use"), ("bytes_limit", "there")):
        lines += _gauge(f"studio_device_{name}", f"Memory {what} on a device.", _device_rows(name, workers))
    lines += _gauge("studio_flops_per_second", "Arithmetic of the last video, by stage.", _rate_rows("flops_per_second", workers))
    lines += _gauge("studio_mfu", "The same as a share of what the devices can do at most.", _rate_rows("mfu", workers))
    return "\n".join(lines) + "\n"


Row = tuple[dict[str, str], float]


def _gauge(name: str, what: str, rows: Sequence[Row]) -> list[str]:
    """One metric's lines, none if there are no rows."""
    values = [f"{name}{_labels(labels)} {value}" for labels, value in rows]
    return [f"# HELP {name} {what}", f"# TYPE {name} gauge", *values] if values else []


def _names(worker: WorkerView, workers: Sequence[WorkerView]) -> dict[str, str]:
    """The label of a worker's lines; none for an only worker, so that its lines stay as they always were."""
    return {"worker": worker.name} if len(workers) > 1 else {}


def _device_rows(name: str, workers: Sequence[WorkerView]) -> list[Row]:
    return [
        (_names(worker, workers) | {"device": device.name}, value)
        for worker in workers
        for device in worker.facts.devices
        if (value := getattr(device, name)) is not None
    ]


def _rate_rows(name: str, workers: Sequence[WorkerView]) -> list[Row]:
    return [
        (_names(worker, workers) | {"stage": stage}, value)
        for worker in workers
        for stage, rate in worker.facts.rates.items()
        if (value := getattr(rate, name)) is not None
    ]


def _labels(labels: Mapping[str, str]) -> str:
    parts = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{parts}}}" if parts else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
