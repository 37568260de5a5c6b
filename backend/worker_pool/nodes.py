"""Run workers on the machines of a Ray cluster, one per free TPU slice or node. Machines may join and leave at any time."""

import logging
import math
import re
import secrets
import signal
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

from backend.cluster.calls import Calls, Disconnected
from backend.cluster.node import NodeWorker
from backend.errors import RequestError, StudioError, one_line
from backend.multihost.versions import fingerprint
from backend.schemas.worker import Hosts
from backend.worker_pool.pool import WorkerPool
from backend.workers.process import WorkerPlan

SLICE_LABEL, TOPOLOGY_LABEL, HOST_LABEL = "ray.io/tpu-slice-name", "ray.io/tpu-topology", "ray.io/tpu-worker-id"
_HEAD = re.compile(r"TPU-.+-head")  # the resource that only a slice's first host has
_ADDRESS = re.compile(r"auto|(\[[0-9a-fA-F:]+\]|[A-Za-z0-9_.\-]+):\d{1,5}")
_LOOK_SECONDS = 1.0
# Seconds before a machine is used again: after its worker could not start, and after its worker was lost.
_AGAIN_SECONDS, _SOON_SECONDS = 30.0, 3.0
_CONNECT_SECONDS, _CLOSE_SECONDS, _DISCONNECT_SECONDS = 5.0, 2.0, 3.0
_PORT_SECONDS = 10.0  # time limit for a slice's first host to find a free port
_CALLS_AT_ONCE = 8  # the most method calls that an actor runs at the same time

Node = Mapping[str, Any]  # an entry of `ray.nodes()`

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Host:
    """One node of a slot, its address, and the resources that a worker reserves on it."""

    node: str
    address: str
    cpus: float = 0.0
    gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WorkerSlot:
    """A place for one worker: all hosts of a slice, in order, or one node. `machine` names the slice or node for the operator."""

    key: str
    machine: str
    hosts: tuple[Host, ...]

    @property
    def name(self) -> str:
        return f"node-{self.hosts[0].node[:8]}"

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(host.node for host in self.hosts)


def find_slots(nodes: Sequence[Node]) -> list[WorkerSlot]:
    """Return the slots of a cluster: its complete TPU slices, or, if no machine has a TPU, every node that offers CPUs."""
    alive, slots = [node for node in nodes if node["Alive"]], []
    names = {node["NodeID"]: node.get("NodeManagerHostname") or node.get("NodeManagerAddress") or "" for node in alive}
    with_chips = [node for node in alive if node["Resources"].get("TPU", 0) >= 1]
    for node in [] if with_chips else alive:
        offered = node["Resources"]
        if offered.get("CPU", 0) >= 1:
            address, gpus = node["NodeManagerAddress"], offered.get("GPU", 0.0)
            host = Host(node=node["NodeID"], address=address, cpus=offered["CPU"], gpus=gpus)
            slots.append(WorkerSlot(key=node["NodeID"], machine=names[node["NodeID"]], hosts=(host,)))
    slices: dict[str, list[Node]] = defaultdict(list)
    wanted_chips: dict[str, int] = {}  # the number of chips of each node's whole slice, 0 if its topology is not known
    for node in with_chips:
        labels, node_id = node.get("Labels") or {}, node["NodeID"]
        sides = labels.get(TOPOLOGY_LABEL, "").split("x")  # such as "2x4"
        wanted_chips[node_id] = math.prod(map(int, sides)) if all(map(str.isdecimal, sides)) else 0
        is_alone = wanted_chips[node_id] <= node["Resources"]["TPU"]  # slices of one host can share a name
        slices[node_id if is_alone else labels.get(SLICE_LABEL) or node_id].append(node)
    for key, members in slices.items():
        if sum(node["Resources"]["TPU"] for node in members) < wanted_chips[members[0]["NodeID"]]:
            continue
        members.sort(key=lambda node: int((node.get("Labels") or {}).get(HOST_LABEL) or 0))
        hosts = []
        for node in members:
            taken = {name: count for name, count in node["Resources"].items() if name == "TPU" or _HEAD.fullmatch(name)}
            hosts.append(Host(node=node["NodeID"], address=node["NodeManagerAddress"], resources=taken))
        slice_name = (members[0].get("Labels") or {}).get(SLICE_LABEL)
        machine = ", ".join(filter(None, (slice_name, names[members[0]["NodeID"]])))
        slots.append(WorkerSlot(key=key, machine=machine, hosts=tuple(hosts)))
    return slots


@dataclass(kw_only=True)
class _ClaimedSlot:
    """A slot and the actors on its hosts. `has_worker` is True if the slot's worker was added to the worker pool."""

    slot: WorkerSlot
    actors: list[Any]
    answers: list[Any]  # each actor's pending `fingerprint` call, which hashes the project's files on the actor's host
    serving: list[Any] = field(default_factory=list)  # each member's `serve` call, which is pending until the member ends
    has_worker: bool = False


class Cluster:
    """The connection to a Ray cluster. A thread looks for new and lost machines every second."""

    def __init__(self, address: str):
        """Connect. Raises: RequestError for an invalid address, StudioError if Ray is not installed or no cluster answers."""
        self._fingerprint = fingerprint()
        self._claimed: dict[str, _ClaimedSlot] = {}
        self._next_claim: dict[str, float] = {}  # monotonic time from which a failed slot may be claimed again, by slot key
        self._warnings: dict[str, str] = {}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._calls = Calls()
        _join_cluster(address)

    def start(self, pool: WorkerPool, plan: WorkerPlan) -> None:
        """Start to add workers to the pool: one worker with this plan for each slice or node of the cluster."""
        self._thread = threading.Thread(target=self._run, args=(pool, plan), name="cluster", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def disconnect(self) -> None:
        import ray

        if self._calls.end(_DISCONNECT_SECONDS):
            ray.shutdown()
        else:
            logger.warning("The cluster does not answer; the machines are given back when this process ends")

    def _run(self, pool: WorkerPool, plan: WorkerPlan) -> None:
        while not self._closing.is_set():
            try:
                with self._calls.count_call():
                    self._update_slots(pool, plan)
            except Disconnected:
                return
            except Exception:  # Ray raises many kinds of errors while its head node is unreachable; existing workers continue
                logger.exception("The cluster's nodes could not be read")
            self._closing.wait(_LOOK_SECONDS)

    def _update_slots(self, pool: WorkerPool, plan: WorkerPlan) -> None:
        import ray

        nodes = ray.nodes()
        alive = {node["NodeID"] for node in nodes if node["Alive"]}
        wanted = {slot.key: slot for slot in find_slots(nodes)}
        working = {view.name: view.job_id is not None for view in pool.workers()}
        for key, claimed in list(self._claimed.items()):
            is_gone = not alive.issuperset(claimed.slot.nodes)
            is_lost = claimed.has_worker and claimed.slot.name not in working
            # If the actor of a host other than the first has ended, the worker would wait for that host forever.
            if claimed.has_worker and not is_lost and claimed.serving and (ended := ray.wait(claimed.serving, timeout=0)[0]):
                is_lost = True
                try:
                    ray.get(ended)
                except Exception as error:
                    self._warn_once(claimed.slot, f"{claimed.slot.machine} has lost one of its hosts: {_last_line(error)}")
            is_unwanted = key not in wanted and not working.get(claimed.slot.name, False)
            if is_lost:
                self._next_claim[key] = time.monotonic() + _SOON_SECONDS
            if is_gone or is_lost or is_unwanted:
                self._release(key, pool)
        for key, slot in wanted.items():
            if key not in self._claimed and time.monotonic() >= self._next_claim.get(key, 0.0):
                actors = [_make_actor_class(host).remote(slot.name) for host in slot.hosts]
                # Ray creates the actors when the machines are free.
                answers = [actor.fingerprint.remote() for actor in actors]
                self._claimed[key] = _ClaimedSlot(slot=slot, actors=actors, answers=answers)
        for key, claimed in list(self._claimed.items()):
            if not claimed.has_worker and not ray.wait(claimed.answers, num_returns=len(claimed.answers), timeout=0)[1]:
                self._start_worker(key, pool, plan)

    def _start_worker(self, key: str, pool: WorkerPool, plan: WorkerPlan) -> None:
        """Start the worker of a claimed slot if all its hosts have the studio's version of the project."""
        import ray

        claimed = self._claimed[key]
        slot = claimed.slot
        try:
            if set(ray.get(claimed.answers)) != {self._fingerprint}:
                raise StudioError("its copy of the project", "is another version", "bring both to the same")
            hosts, ask = None, partial(self._calls.ask, claimed.actors[0])
            if len(slot.hosts) > 1:  # the other hosts connect to a free port of the first host, with a new secret
                address = slot.hosts[0].address
                port = ask("free_port", address, seconds=_PORT_SECONDS)
                hosts = Hosts(count=len(claimed.actors), address=address, port=port, secret=secrets.token_urlsafe())
                claimed.serving = [actor.serve.remote(hosts, index) for index, actor in enumerate(claimed.actors) if index]
            pool.add_worker(replace(plan, transport="cluster", name=slot.name, node=ask, machine=slot.machine, hosts=hosts))
        except Exception as error:  # Ray raises many kinds of errors, for example for a missing project, package or machine
            self._warn_once(slot, f"{slot.machine} cannot work: {_last_line(error)}")
            self._next_claim[key] = time.monotonic() + _AGAIN_SECONDS
            self._release(key, pool)
            return
        claimed.has_worker = True
        self._warnings.pop(key, None)

    def _release(self, key: str, pool: WorkerPool) -> None:
        import ray

        claimed = self._claimed.pop(key)
        pool.remove_worker(claimed.slot.name)
        for actor in claimed.actors:
            ray.kill(actor)

    def _warn_once(self, slot: WorkerSlot, sentence: str) -> None:
        if self._warnings.get(slot.key) != sentence:
            self._warnings[slot.key] = sentence
            logger.warning("%s", sentence)


def _make_actor_class(host: Host) -> Any:
    """Return the Ray actor class for this host, with the resources that a worker reserves."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return ray.remote(NodeWorker).options(
        num_cpus=host.cpus,
        num_gpus=host.gpus,
        resources=dict(host.resources),
        scheduling_strategy=NodeAffinitySchedulingStrategy(host.node, soft=False),
        max_concurrency=_CALLS_AT_ONCE,
        max_restarts=0,
    )


def _join_cluster(address: str) -> None:
    """Join the cluster as a driver, without Ray's logging and Ray's handler of SIGTERM."""
    if not _ADDRESS.fullmatch(address):
        raise RequestError(f"cluster={address!r}", "must be HOST:PORT of the cluster's head, or auto", "check the address")
    if find_spec("ray") is None:
        raise StudioError("--cluster needs Ray, which", "is not installed here", "run `pip install -r requirements-cluster.txt`")
    if address != "auto":  # Ray itself would retry for a minute
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise _cannot_join(address, str(error)) from error
    import ray

    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, ignore_reinit_error=True)
    except Exception as error:
        raise _cannot_join(address, _last_line(error)) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _cannot_join(address: str, why: str) -> StudioError:
    port = "HOST:6379" if address == "auto" else address
    return StudioError(
        f"the cluster at {address}",
        f"cannot be joined ({why})",
        f"see that its head runs, and join this machine first: `ray start --address={port} --num-cpus=0`",
    )


def _last_line(error: Exception) -> str:
    """Return the last line of a Ray error. The other lines are the traceback of the other machine."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return one_line(lines[-1])[:200] if lines else type(error).__name__
