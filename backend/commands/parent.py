"""A process that ends with the one that started it, whatever it does or waits for then."""

import os
import threading
import time

_WATCH_SECONDS = 0.5


def end_with(parent: int) -> None:
    """Ends this process once the process `parent` is not its parent, or no more: within a second, without cleaning up.

    The parent tells its number. This process could ask for it too late.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
