"""`/healthz` for monitoring, and `/metrics` in Prometheus' text format. Neither shows prompts or names of visitors."""

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from backend.engine.engine import Engine
from wan_ui.gateway.access import Access

STATES = ("queued", "running", "finished", "failed", "cancelled")
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
Row = tuple[dict[str, str], float]  # labels and value


def health_route(engine: Engine, access: Access, *, is_open: bool) -> Route:
    """Return the route of `/healthz`. The status is 200, or 503 if all workers failed or the disk is full.

    `detail` names each accelerator that is not used, and the fix. If a password is set, only callers with the operator's key
    receive the length of the queue.
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
    def metrics(request: Request) -> Response:
        if not is_open and not access.has_operator_key(request.headers):
            return PlainTextResponse("The operator's key is needed as a bearer token", 401, {"WWW-Authenticate": "Bearer"})
        return PlainTextResponse(metrics_text(engine), media_type="text/plain; version=0.0.4")

    return Route("/metrics", metrics, methods=["GET"])


def metrics_text(engine: Engine) -> str:
    """Return all metrics as text. Source: prometheus.io/docs/instrumenting/exposition_formats, text format 0.0.4."""
    counts, workers = engine.library.counts(), engine.pool.workers()
    # A single worker has no label, so that dashboards for one worker keep working.
    labelled = [({"worker": worker.name} if len(workers) > 1 else {}, worker) for worker in workers]
    ready = [(label, int(worker.status.state in ("ready", "busy"))) for label, worker in labelled]
    gauges: list[tuple[str, str, Sequence[Row]]] = [
        ("studio_jobs", "Jobs in the store by state.", [({"state": state}, counts.get(state, 0)) for state in STATES]),
        ("studio_worker_ready", "1 if the worker can generate a video now.", ready),
        ("studio_warm_shapes", "Sizes whose programs are compiled.", [(label, len(one.facts.warm)) for label, one in labelled]),
        ("studio_queue_paused", "1 if the queue waits for free disk space.", [({}, int(bool(engine.queue.find_shortage())))]),
    ]
    for name, what in (("bytes_in_use", "in use"), ("bytes_limit", "there")):
        rows = [
            (label | {"device": device.name}, value)
            for label, worker in labelled
            for device in worker.facts.devices
            if (value := getattr(device, name)) is not None
        ]
        gauges.append((f"studio_device_{name}", f"Memory {what} on a device.", rows))
    for name, what in (
        ("flops_per_second", "Floating-point operations per second of the last video, by stage."),
        ("mfu", "Share of the devices' peak floating-point rate, by stage."),
    ):
        rows = [
            (label | {"stage": stage}, value)
            for label, worker in labelled
            for stage, rate in worker.facts.rates.items()
            if (value := getattr(rate, name)) is not None
        ]
        gauges.append((f"studio_{name}", what, rows))
    lines = []
    for name, what, rows in gauges:
        lines += [f"# HELP {name} {what}", f"# TYPE {name} gauge"] if rows else []
        for labels, value in rows:
            parts = ",".join(f'{label}="{text.translate(_ESCAPES)}"' for label, text in labels.items())
            lines.append(f"{name}{{{parts}}} {value}" if parts else f"{name} {value}")
    return "\n".join(lines) + "\n"
