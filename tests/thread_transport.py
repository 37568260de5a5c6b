"""A second transport, for tests only: the real worker loop with the stand-in pipeline, in a thread, over pipes in memory.

In the project it needs only its line in `backend.worker_pool.transports.TRANSPORTS`.
"""

import os
import threading
from functools import partial
from pathlib import Path

from backend.schemas.settings import find_preset
from backend.workers.loop import Worker
from backend.workers.messages import Channel, Message, Stop
from backend.workers.pipeline import import_pipeline
from backend.workers.process import OnExit, OnMessage, WorkerPlan

_STOP_SECONDS = 5.0


class ThreadTransport:
    """One worker loop in a thread of this process. It cannot be killed: `stop` waits until its job has ended."""

    pid = None

    def __init__(self, plan: WorkerPlan, log: Path, on_message: OnMessage, on_exit: OnExit):
        self._on_message, self._on_exit = on_message, on_exit
        self._channel, self._workers_channel = _pair()
        make = partial(import_pipeline, "tests.fake_pipeline")
        self._worker = Worker(self._workers_channel, make, plan.model, end=lambda code: None)
        self._threads = [threading.Thread(target=self._work, args=(plan,)), threading.Thread(target=self._read)]
        for thread in self._threads:
            thread.start()

    def send(self, message: Message) -> None:
        self._channel.send(message)

    def kill(self) -> None:
        """Close the channel. A thread cannot be killed."""
        self._workers_channel.close()

    def stop(self) -> None:
        self.send(Stop())
        for thread in self._threads:
            thread.join(_STOP_SECONDS)

    def _work(self, plan: WorkerPlan) -> None:
        self._worker.run(find_preset(plan.preset), plan.warm_up)
        self._workers_channel.close()

    def _read(self) -> None:
        for message in self._channel.receive():
            self._on_message(message)
        self._channel.close()
        self._on_exit(0)


def _pair() -> tuple[Channel, Channel]:
    """Return two connected channels."""
    (ours_in, theirs_out), (theirs_in, ours_out) = os.pipe(), os.pipe()
    return _channel(ours_in, ours_out), _channel(theirs_in, theirs_out)


def _channel(incoming: int, outgoing: int) -> Channel:
    return Channel(os.fdopen(incoming, "rb"), os.fdopen(outgoing, "wb"))
