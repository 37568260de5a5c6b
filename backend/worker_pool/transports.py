"""The kinds of transports. A new kind needs a module and an entry in `TRANSPORTS`."""

from collections.abc import Callable
from pathlib import Path

from backend.cluster.transport import ClusterTransport
from backend.multihost.transport import MultihostTransport
from backend.workers.process import OnExit, OnMessage, Transport, WorkerPlan, WorkerProcess

Open = Callable[[WorkerPlan, Path, OnMessage, OnExit], Transport]
"""A function that starts the worker of a plan. The worker's output goes to the log at this path. Raises: OSError."""

TRANSPORTS: dict[str, Open] = {
    "process": WorkerProcess,
    "hosts": MultihostTransport,
    "cluster": ClusterTransport,
}
"""The kinds of transports, by the name in `WorkerPlan.transport`."""
