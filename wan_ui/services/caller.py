"""The sender of a request: a visitor, a program with a key, or the operator."""

from dataclasses import dataclass

from backend.engine.scheduling import QueueLimits
from wan_ui.i18n.english import ENGLISH, Texts


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The caller's name in the store, their rights and their language. Created by `StudioContext.identify_caller`.

    `scope` is the owner whose jobs the caller may see, None for the operator, who sees all jobs. `queue_limits` are the largest
    numbers of queued videos, None without a limit.
    """

    owner: str
    scope: str | None
    is_operator: bool
    texts: Texts
    queue_limits: QueueLimits | None

    def may_see(self, owner: str) -> bool:
        return self.scope in (None, owner)

    @property
    def uses_english(self) -> bool:
        """True if the page needs no translation. The page is built once, in English."""
        return self.texts is ENGLISH
