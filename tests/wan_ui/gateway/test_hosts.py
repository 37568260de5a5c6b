"""Tests of the host names that are served, and of the pages that may send requests."""

import pytest

from wan_ui.gateway.gateway import Hosts

NAMES = ["Studio.Example", "https://abc.gradio.live/", "0.0.0.0"]


@pytest.mark.parametrize(
    ("host", "is_served"),
    [
        ("127.0.0.1:7860", True),
        ("192.168.1.5", True),
        ("[::1]:7860", True),
        ("localhost:7860", True),
        ("LOCALHOST.", True),
        ("studio.example", True),
        ("STUDIO.example.:443", True),
        ("abc.gradio.live", True),
        ("evil.example:7860", False),
        ("studio.example.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example@127.0.0.1", False),
        ("localhost.evil.example", False),
        ("", False),
        ("[", False),
        ("127.0.0.1:port", False),
    ],
)
def test_numbers_localhost_and_given_names_are_served(host, is_served):
    assert Hosts(NAMES).serves(host) == is_served


@pytest.mark.parametrize(
    ("origin", "hosts", "is_own"),
    [
        ("http://127.0.0.1:7860", ["127.0.0.1:7860"], True),
        ("http://127.0.0.1:7965", ["127.0.0.1:7860"], False),
        ("http://localhost:7860", ["127.0.0.1:7860"], False),
        ("https://1.2.3.4", ["1.2.3.4"], True),
        ("https://1.2.3.4", ["1.2.3.4:443"], True),
        ("http://1.2.3.4:8080", ["1.2.3.4"], False),
        ("https://studio.example", ["127.0.0.1:7860"], True),  # a proxy that sends its own Host header and no other
        ("https://studio.example:8443", ["127.0.0.1:7860"], False),
        ("https://studio.example:8443", ["127.0.0.1:7860", "studio.example:8443"], True),
        ("https://evil.example", ["192.168.1.5"], False),
        ("null", ["127.0.0.1"], False),
        ("", ["127.0.0.1"], False),
        ("ftp://127.0.0.1", ["127.0.0.1"], False),
        ("http://user@127.0.0.1", ["127.0.0.1"], False),
    ],
)
def test_a_page_is_ours_by_its_name_and_its_port(origin, hosts, is_own):
    assert Hosts(NAMES).is_own(origin, hosts) == is_own


def test_a_name_can_be_added_later():
    hosts = Hosts()
    assert not hosts.serves("abc.gradio.live")
    hosts.add("https://abc.gradio.live")
    assert hosts.serves("abc.gradio.live")
