"""`/healthz` for monitoring, and `/metrics` in Prometheus' text format.

With several workers, `/metrics` has lines for each worker, with the worker's name in the label `worker`. `/healthz` then lists
the state of each worker. Neither address shows prompts or names of visitors. If a password is set, `/metrics` requires the
operator's key as a bearer token ("Authorization: Bearer KEY" with the key in the operator link).
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
    """Return the route of `/healthz`. The status is 200, or 503 if all workers failed or the disk is full.

    In the answer, `detail` names each accelerator that is not used, and the fix. If a password is set, only callers with the
    operator's key receive the length of the queue.
    """

    def health(request: Request) -> Response:
        state, workers = engine.pool.status().state, engine.pool.workers()
        answer: dict[str, Any] = {"worker": state}
        if is_open or access.has_operator_key(request.headers):
            answer["waiting"] = len(engine.queue.waiting_job_ids())
        if faults := dict.fromkeys(str(one.facts.notice) for one in workers if one.facts.notice and one.facts.notice.is_fault):
            answer["detail"] = "; ".join(faults)
        if (short := engine.queue.find_shortage()) is not None:
            answer["disk"] = str(short)
        if len(workers) > 1:
            answer["workers"] = {worker.name: worker.status.state for worker in workers}
        return JSONResponse(answer, 503 if state == "failed" or short else 200)

    return Route("/healthz", health, methods=["GET"])


def metrics_route(engine: Engine, access: Access, *, is_open: bool) -> Route:
    """Return the route of `/metrics`: gauges of the queue, the workers and their devices."""

    def metrics(request: Request) -> Response:
        if not is_open and not access.has_operator_key(request.headers):
            return PlainTextResponse("The operator's key is needed as a bearer token", 401, {"WWW-Authenticate": "Bearer"})
        return PlainTextResponse(metrics_text(engine), media_type="text/plain; version=0.0.4")

    return Route("/metrics", metrics, methods=["GET"])


def metrics_text(engine: Engine) -> str:
    """Return all metrics as text. Source: prometheus.io/docs/instrumenting/exposition_formats, text format 0.0.4."""
    counts, workers = engine.library.counts(), engine.pool.workers()
    lines = _gauge_lines(
        "studio_jobs", "Jobs in the store by state.", [({"state": state}, counts.get(state, 0)) for state in STATES]
    )
    ready = [(_worker_label(worker, workers), int(worker.status.state in ("ready", "busy"))) for worker in workers]
    lines += _gauge_lines("studio_worker_ready", "1 if the worker can generate a video now.", ready)
    warm = [(_worker_label(worker, workers), len(worker.facts.warm)) for worker in workers]
    lines += _gauge_lines("studio_warm_shapes", "Sizes whose programs are compiled.", warm)
    lines += _gauge_lines(
        "studio_queue_paused", "1 if the queue waits for free disk space.", [({}, int(bool(engine.queue.find_shortage())))]
    )
    for name, what in (("bytes_in_use", "in use"), ("bytes_limit", "there")):
        lines += _gauge_lines(f"studio_device_{name}", f"Memory {what} on a device.", _device_rows(name, workers))
    lines += _gauge_lines(
        "studio_flops_per_second",
        "Floating-point operations per second of the last video, by stage.",
        _rate_rows("flops_per_second", workers),
    )
    lines += _gauge_lines("studio_mfu", "Share of the devices' peak floating-point rate, by stage.", _rate_rows("mfu", workers))
    return "\n".join(lines) + "\n"


Row = tuple[dict[str, str], float]


def _gauge_lines(name: str, what: str, rows: Sequence[Row]) -> list[str]:
    """Return the lines of one metric. Return an empty list if it has no rows."""
    values = [f"{name}{_format_labels(labels)} {value}" for labels, value in rows]
    return [f"# HELP {name} {what}", f"# TYPE {name} gauge", *values] if values else []


def _worker_label(worker: WorkerView, workers: Sequence[WorkerView]) -> dict[str, str]:
    """Return the label for a worker's lines. A single worker has no label, so that dashboards for one worker keep working."""
    return {"worker": worker.name} if len(workers) > 1 else {}


def _device_rows(name: str, workers: Sequence[WorkerView]) -> list[Row]:
    return [
        (_worker_label(worker, workers) | {"device": device.name}, value)
        for worker in workers
        for device in worker.facts.devices
        if (value := getattr(device, name)) is not None
    ]


def _rate_rows(name: str, workers: Sequence[WorkerView]) -> list[Row]:
    return [
        (_worker_label(worker, workers) | {"stage": stage}, value)
        for worker in workers
        for stage, rate in worker.facts.rates.items()
        if (value := getattr(rate, name)) is not None
    ]


def _format_labels(labels: Mapping[str, str]) -> str:
    parts = ",".join(f'{name}="{_escape_label(value)}"' for name, value in labels.items())
    return f"{{{parts}}}" if parts else ""


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
