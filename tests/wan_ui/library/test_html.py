"""Tests of how a card and the details in the library show that a video has audio."""

import dataclasses
from pathlib import Path

from tests.wan_ui.builders import a_job, a_result
from wan_ui.i18n.english import ENGLISH
from wan_ui.library.html import LibraryContent, detail_html, library_html


def test_a_card_is_marked_if_its_video_has_sound():
    silent, sounding = a_job(), a_job(Path("/data/runs/job-2"), prompt="a <bell>")
    html = library_html(LibraryContent(jobs=(silent, sounding), count=2, sounding=frozenset({"job-2"})), ENGLISH)
    first, second = html.split("<li ")[1:]
    assert "sound-mark" not in first and 'aria-label="a red circle"' in first
    assert second.count('class="sound-mark" role="img" aria-label="with audio"') == 1
    assert 'aria-label="a &lt;bell&gt;, with audio"' in second and "<video muted " in second


def test_the_sound_can_be_saved_where_there_is_one_and_the_video_is_not_deleted():
    job, link = a_job(), 'href="studio/sound/job-1.wav" download="wan-tiny-7.wav"'
    assert link in detail_html(job, a_result(job, has_sound=True), ENGLISH)
    assert link not in detail_html(job, a_result(job), ENGLISH)
    deleted = dataclasses.replace(job, deleted=1.0)
    assert link not in detail_html(deleted, a_result(job, has_sound=True), ENGLISH)
