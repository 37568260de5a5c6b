"""The table of all limits. The packages that enforce them import them from here. A test compares them with docs/security.md."""

import sys
from dataclasses import dataclass

from backend.engine import cleaning, instant
from backend.media import sandbox

UNLIMITED = sys.maxsize


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The largest allowed numbers of one thing: for one visitor or program key, for one network address, for all visitors without
    a key together, and in total. `what` is its name in docs/security.md, with its unit."""

    what: str
    of_visitor: int = UNLIMITED
    of_address: int = UNLIMITED
    without_key: int = UNLIMITED
    in_all: int = UNLIMITED


QUEUED_VIDEOS = Limit(what="queued videos", of_visitor=20, of_address=40, without_key=60, in_all=100)
INSTANT_DRAFTS = Limit(
    what="instant drafts in progress", of_visitor=1, of_address=instant.MOST_OF_ADDRESS, in_all=instant.MOST_IN_ALL
)
OPEN_REQUESTS = Limit(what="open requests", of_address=150, in_all=1000)
STREAMS = Limit(what="open streams", of_visitor=20, of_address=150, in_all=700)
FILES_BEING_OPENED = Limit(what="requests that open files at the same time", of_visitor=1, of_address=1, in_all=sandbox.AT_ONCE)
FILES_WAITING = Limit(
    what="requests that wait to open files",
    of_visitor=sandbox.MOST_OF_VISITOR,
    of_address=sandbox.MOST_OF_ADDRESS,
    in_all=sandbox.MOST_WAITING,
)
UPLOADED_BYTES = Limit(what="uploaded bytes per hour", of_visitor=500_000_000, of_address=1_000_000_000, in_all=5_000_000_000)
KEPT_BYTES = Limit(what="bytes of videos and their inputs, deleted ones included", of_visitor=cleaning.KEPT_BYTES)
BIN_BYTES = Limit(
    what="bytes of deleted videos that can be restored", of_visitor=cleaning.BIN_BYTES_OF_OWNER, in_all=cleaning.BIN_BYTES
)
PROMPTS_WRITTEN = Limit(what="prompt suggestions in progress", of_visitor=1, of_address=2, in_all=4)
PROMPTS_HOURLY = Limit(what="prompt suggestions per hour", of_visitor=60, of_address=120, in_all=600)
LONG_WORK = Limit(
    what="exports, storyboard files and projects in progress", of_visitor=1, of_address=1, in_all=sandbox.TASKS.at_once
)
LONG_WORK_WAITING = Limit(
    what="waiting exports, storyboard files and projects",
    of_visitor=sandbox.TASKS.waiting_of_visitor,
    of_address=sandbox.TASKS.waiting_of_address,
    in_all=sandbox.TASKS.waiting,
)
LONG_WORK_SECONDS = Limit(
    what="processor seconds of exports, storyboard files and projects per hour",
    of_visitor=int(sandbox.BUDGET.of_visitor),
    of_address=int(sandbox.BUDGET.of_address),
    in_all=int(sandbox.BUDGET.in_all),
)
FILES_SENT = Limit(what="exports and projects in progress or being downloaded", of_visitor=2, of_address=4, in_all=8)
JSON_BYTES = Limit(what="bytes of JSON in a request, without data URLs", of_visitor=1_000_000)
BODY_BYTES = Limit(what="bytes of a request to `/v1/videos`, and of one uploaded file", of_visitor=60_000_000)
LOG_BYTES = Limit(what="bytes that a request writes to the log", of_visitor=2_000)
LOG_LINES = Limit(what="lines of refused calls in the log per minute", of_visitor=100, in_all=1_000)
LOG_FILE_BYTES = Limit(what="bytes of each of the two log files", in_all=10_000_000)
WRONG_PASSWORDS = Limit(what="wrong passwords per minute", of_address=5, in_all=30)
