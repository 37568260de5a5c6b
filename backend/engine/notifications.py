"""Send notifications through Apprise when a video ends, to the operator or to the addresses of a program's key.

A separate thread sends them, so a slow service delays nothing else. Failures are logged without the address, which often
contains a password.
"""

import logging
import queue
import threading
from collections.abc import Sequence

from backend.engine.job import Job
from backend.engine.jobs import Jobs
from backend.engine.keys import Keys
from backend.errors import StudioError
from backend.schemas.events import Event, Failed, Finished

LONGEST_PROMPT = 200  # characters; a longer prompt is cut
MOST_WAITING = 100
CLOSING_SECONDS = 5.0

logger = logging.getLogger(__name__)


def is_address(text: str) -> bool:
    from apprise import Apprise  # late, because Apprise imports the library requests, and most servers need neither

    return bool(Apprise().add(text))


class Notifications:
    def __init__(self, addresses: Sequence[str], jobs: Jobs, keys: Keys) -> None:
        self._addresses, self._jobs, self._keys = tuple(addresses), jobs, keys
        self._waiting: queue.Queue[tuple[str, Finished | Failed] | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._work, name="notices", daemon=True)
        self._thread.start()

    def notify_end(self, job_id: str, event: Event) -> None:
        """Queue a notification if the job has finished or failed. Do nothing if the job was cancelled."""
        if not isinstance(event, Finished | Failed):
            return
        try:
            self._waiting.put_nowait((job_id, event))
        except queue.Full:
            logger.warning("Notification for job %s dropped: the queue is full", job_id)

    def close(self) -> None:
        """Send the queued notifications, for at most `CLOSING_SECONDS`."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(CLOSING_SECONDS)

    def _work(self) -> None:
        while (one := self._waiting.get()) is not None:
            job_id, event = one
            try:
                self._send(self._jobs.find(job_id), event)
            except StudioError:
                logger.exception("The notification for job %s could not be sent", job_id)
            except Exception:  # not logged in full: the errors of services may contain the address
                logger.warning("The notification for job %s could not be sent", job_id)

    def _send(self, job: Job, event: Finished | Failed) -> None:
        key = self._keys.find_by_owner(job.owner)
        addresses = (*(self._addresses if job.is_operator_notified else ()), *(key.notify if key else ()))
        if not addresses:
            return
        from apprise import Apprise, NotifyType

        request = job.request
        prompt = request.prompt if len(request.prompt) <= LONGEST_PROMPT else request.prompt[: LONGEST_PROMPT - 3] + "..."
        facts = f"{request.preset}, {request.width}x{request.height}, seed {request.seed}"
        if isinstance(event, Failed):
            kind, title, body = NotifyType.FAILURE, f"A video failed: {event.cause}", f"{prompt}\n{event.fix}\n{facts}"
        else:
            seconds = event.result.seconds.get("total")
            details = f"{facts}, generated in {seconds:.0f} s" if seconds else facts
            kind, title, body = NotifyType.SUCCESS, "A video is finished", f"{prompt}\n{details}"
        sender = Apprise()
        sender.add(list(addresses))
        if not sender.notify(title=title, body=body, notify_type=kind):
            logger.warning("The notification for job %s could not be sent to every address", job.id)
