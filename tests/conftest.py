"""What all tests count on."""

import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def interrupts_arrive() -> None:
    """A shell that starts the tests in the background makes them, and all that they start, deaf to Ctrl+C, which some press."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
