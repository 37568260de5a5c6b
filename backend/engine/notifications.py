"""Word when a video is done, through Apprise: to the operator of their own videos (`serve --notify URL`), and to those behind a
program's key of what it made (`keys create NAME --notify URL`). Visitors give no addresses, and nothing is told of their videos.

What is told is the prompt and how it went. Sending waits in a thread of its own, so a service that does not answer keeps nothing
else waiting; one that fails is logged without its address, which often holds a password.
"""

import logging
import queue
import threading
from collections.abc import Sequence

from backend.engine.job import Job
from backend.engine.keys import Keys
from backend.engine.store import Store
from backend.errors import StudioError
from backend.schemas.events import Event, Failed, Finished

LONGEST_PROMPT = 200  # characters of it that are told
MOST_WAITING = 100
CLOSING_SECONDS = 5.0

logger = logging.getLogger(__name__)


def is_address(text: str) -> bool:
    """Whether Apprise knows how to reach this."""
    from apprise import Apprise  # late: it brings requests, and most servers tell nobody

    return bool(Apprise().add(text))


class Notifications:
    """Tells of the ends of jobs. `addresses` are the operator's."""

    def __init__(self, addresses: Sequence[str], store: Store, keys: Keys) -> None:
        self._addresses, self._store, self._keys = tuple(addresses), store, keys
        self._waiting: queue.Queue[tuple[str, Event] | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._work, name="notices", daemon=True)
        self._thread.start()

    def ended(self, job_id: str, event: Event) -> None:
        """Tells of a job's end, soon, if this event is that; nothing of one that somebody has stopped."""
        if not isinstance(event, Finished | Failed):
            return
        try:
            self._waiting.put_nowait((job_id, event))
        except queue.Full:
            logger.warning("The end of job %s is not told: too many are being told", job_id)

    def close(self) -> None:
        """Tells what has ended, for a few seconds at most."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(CLOSING_SECONDS)

    def _work(self) -> None:
        while (one := self._waiting.get()) is not None:
            job_id, event = one
            try:
                self._send(self._store.job(job_id), event)
            except StudioError:
                logger.exception("The end of job %s could not be told", job_id)
            except Exception:  # of a hundred services; what they say may hold the address
                logger.warning("The end of job %s could not be told", job_id)

    def _send(self, job: Job, event: Event) -> None:
        key = self._keys.find_by_owner(job.owner)
        addresses = (*(self._addresses if job.is_told else ()), *(key.notify if key else ()))
        if not addresses:
            return
        from apprise import Apprise, NotifyType

        sender, (title, body) = Apprise(), words(job, event)
        sender.add(list(addresses))
        kind = NotifyType.FAILURE if isinstance(event, Failed) else NotifyType.SUCCESS
        if not sender.notify(title=title, body=body, notify_type=kind):
            logger.warning("The end of job %s could not be told to every address", job.id)


def words(job: Job, event: Event) -> tuple[str, str]:
    """What is told: a title and a text."""
    request = job.request
    prompt = request.prompt if len(request.prompt) <= LONGEST_PROMPT else request.prompt[: LONGEST_PROMPT - 3] + "..."
    facts = f"{request.preset}, {request.width}x{request.height}, seed {request.seed}"
    if isinstance(event, Failed):
        return f"A video failed: {event.cause}", f"{prompt}\n{event.fix}\n{facts}"
    seconds = event.result.seconds.get("total") if isinstance(event, Finished) else None
    took = f"{facts}, made in {seconds:.0f} s" if seconds else facts
    return "A video is done", f"{prompt}\n{took}"
