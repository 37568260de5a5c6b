"""The studio's views, in the order of the header and of the shortcuts Alt+1, Alt+2 and so on. Add new views here."""

from wan_ui.compare.view import COMPARE
from wan_ui.create.view import CREATE
from wan_ui.edit.view import EDIT
from wan_ui.library.view import LIBRARY
from wan_ui.live.view import LIVE
from wan_ui.models.view import MODELS
from wan_ui.system.view import SYSTEM
from wan_ui.view import View

VIEWS: tuple[View, ...] = (CREATE, EDIT, LIVE, COMPARE, LIBRARY, MODELS, SYSTEM)
