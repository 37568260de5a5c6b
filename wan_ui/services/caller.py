"""Who is asking: the visitor who sent a request, read from it once."""

from dataclasses import dataclass

from backend.engine.scheduling import Room
from wan_ui.gateway.access import scope_includes
from wan_ui.i18n.english import ENGLISH, Texts


@dataclass(frozen=True, kw_only=True)
class Caller:
    """A visitor's name in the store, what they may see and queue, and their words. `StudioContext.caller` makes it.

    `scope` says whose jobs are shown: the visitor's own, or None, everybody's, for the operator. `room` is how many videos may
    wait with one more of this visitor; None: any number.
    """

    owner: str
    scope: str | None
    is_operator: bool
    texts: Texts
    room: Room | None

    def may_see(self, owner: str) -> bool:
        """Whether this visitor may see what belongs to this owner."""
        return scope_includes(self.scope, owner)

    @property
    def reads_the_first_page(self) -> bool:
        """Whether the page needs no other words for them: it is built once, in English."""
        return self.texts is ENGLISH
