"""Tests that the charts show known values only."""

import re

from backend.engine.history import Sample
from wan_ui.i18n.english import ENGLISH
from wan_ui.system.html import HEIGHT, WIDTH, charts_html


def sample(age: float, **values) -> Sample:
    return Sample(time=1000.0 * 3600 - age, waiting=0, running=1, disk_bytes=5 * 10**9, disk_limit=10**10, **values)


def points(html: str) -> list[list[tuple[float, float]]]:
    lines = re.findall(r'<polyline points="([^"]*)"', html)
    return [[tuple(map(float, point.split(","))) for point in line.split()] for line in lines]


def test_nothing_known_draws_nothing():
    assert charts_html([], 0.0, ENGLISH) == ""


def test_lines_lie_in_their_pictures_and_break_where_nothing_was_known():
    steps = [sample(age, step_seconds=2.0 if age > 600 else 4.0) for age in (3000, 2970, 2940, 300, 270)]
    html = charts_html(steps, 1000.0 * 3600, ENGLISH)
    assert "Device memory" not in html and html.count("<svg") == 6
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for line in points(html) for x, y in line)
    hour = points(html.partition("Videos queued")[0])[:2]
    assert [len(line) for line in hour] == [3, 2] and hour[0][0][1] > hour[1][0][1], "longer steps are drawn higher"
    assert "4.0 s" in html and "5.0 GB" in html
