from html.parser import HTMLParser

from backend.schemas import events
from tests.wan_ui.builders import a_job, a_result
from wan_ui.components.progress import StageView, advance_view, queue_position_texts
from wan_ui.i18n.english import ENGLISH
from wan_ui.stage.html import Model, stage_html


class Skeleton(HTMLParser):
    """Collects the tags of a fragment with their order and depth, by which Gradio patches a page."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        self.tags.append(f"/{tag}")


def screen(html: str) -> list[str]:
    return Skeleton(html[: html.index('<div class="foot">')]).tags


def test_the_skeleton_of_the_screen_never_changes():
    job = a_job()
    views = [
        StageView(),
        StageView(phase="queued", ahead=2),
        StageView(phase="denoising", preview="previews/1.png"),
        StageView(phase="finished", fraction=1, result=a_result(job)),
        StageView(phase="failed", cause="no"),
    ]
    assert len({tuple(screen(stage_html(view, job, ENGLISH))) for view in views}) == 1


def test_what_a_person_wrote_is_escaped_everywhere():
    nasty = '<script>alert("1")</script>'
    job = a_job(prompt=nasty)
    finished = stage_html(StageView(phase="finished", result=a_result(job)), job, ENGLISH, Model(title=nasty, full_title=nasty))
    failed = stage_html(StageView(phase="failed", cause=nasty, fix=nasty), job, ENGLISH)
    assert "<script" not in finished + failed


def test_a_finished_video_shows_seed_timings_and_a_download():
    job = a_job()
    html = stage_html(advance_view(StageView(), events.Finished(a_result(job))), job, ENGLISH, Model(title="Demo model"))
    assert 'src="studio/media/job-1/video.mp4"' in html and 'download="wan-tiny-7.mp4"' in html
    assert "<dt>Seed</dt><dd>7</dd>" in html and "<dt>Denoise</dt><dd>3.0 s</dd>" in html
    assert "Done in 4.2 s" in html and "Demo model" in html


def test_a_step_shows_rate_and_time_left():
    html = stage_html(advance_view(StageView(), events.Step(3, 20, 0.31, 5.2, None)), a_job(), ENGLISH)
    assert "Step 3 of 20" in html and "0.31 s per step · 5.2 s left" in html and 'aria-valuenow="17"' in html


def test_the_place_in_the_queue_counts_the_running_video_too():
    assert queue_position_texts(0, ENGLISH) == ("Next in the queue", "1 video is ahead.")
    assert queue_position_texts(2, ENGLISH) == ("Place 3 in the queue", "3 videos are ahead.")


def test_a_stopped_job_says_what_was_kept():
    job = a_job()
    kept = stage_html(StageView(phase="cancelled", result=a_result(job)), job, ENGLISH)
    nothing = stage_html(StageView(phase="cancelled"), job, ENGLISH)
    assert ENGLISH.cancelled_partial in kept and ENGLISH.cancelled_nothing in nothing


def test_a_download_says_its_speed_and_what_is_left():
    def shown(*values) -> str:
        return stage_html(advance_view(StageView(), events.Loading(*values)), a_job(), ENGLISH)

    assert "30 / 100 MB · 10.0 MB/s · 7.0 s left" in shown(30_000_000, 100_000_000, "the download", 10e6)
    assert "MB/s" not in shown(30_000_000, 100_000_000, "transformer")


def test_a_video_from_a_clip_is_compared_with_it_and_goes_back_to_edit():
    plain, clip = a_job(), a_job(video="/data/runs/job-1/input-video.mp4", strength=0.5, steps=8)
    drawn = [stage_html(StageView(phase="finished", result=a_result(job)), job, ENGLISH) for job in (plain, clip)]
    for act, places in (("compare:original", [0, 1]), ("edit:use", [0, 1]), ("fill:use", [1, 0]), ("edit:clip", [1, 1])):
        assert [html.count(f'data-act="{act}"') for html in drawn] == places
    sound = 'data-player="sound"'
    assert [html.partition(sound)[2].partition(">")[0].endswith("hidden") for html in drawn] == [True, False]
    facts = drawn[1].partition('<dl class="settings">')[2]
    assert "<dt>Steps</dt><dd>4</dd>" in facts and "<dt>Strength</dt><dd>0.5</dd>" in facts and "Strength" not in drawn[0]


def test_a_video_with_sound_has_a_waveform_a_volume_and_its_sound_to_save():
    job = a_job()
    silent, sounding = (
        stage_html(StageView(phase="finished", result=a_result(job, has_sound=has_sound)), job, ENGLISH)
        for has_sound in (False, True)
    )
    assert (
        Skeleton(silent[: silent.index('class="actions"')]).tags == Skeleton(sounding[: sounding.index('class="actions"')]).tags
    )
    for part in ('<canvas class="wave"', 'data-player="sound"', 'data-player="volume"'):
        assert [html.partition(part)[2].partition(">")[0].endswith("hidden") for html in (silent, sounding)] == [True, False]
    link = '<a class="sound-download" href="studio/sound/job-1.wav" download="wan-tiny-7.wav">'
    assert [html.count(link) for html in (silent, sounding)] == [0, 1]
    assert 'aria-pressed="false" data-player="sound"' in sounding and "<video muted " in sounding


def test_the_reading_of_weights_says_its_speed_too_and_a_download_is_called_one():
    def shown(*values) -> str:
        return stage_html(advance_view(StageView(), events.Loading(*values)), a_job(), ENGLISH)

    assert "Downloading the model" in shown(1, 2, events.DOWNLOAD) and "Loading the model" in shown(1, 2, "transformer")
    assert "1.0 s left" in shown(1_000_000, 2_000_000, "transformer", 1e6)


def test_compiling_says_which_program_and_about_how_long():
    def shown(*values) -> str:
        return stage_html(advance_view(StageView(), events.Compiling(*values)), a_job(), ENGLISH)

    assert "2 of 5 · about 1 min 2 s left" in shown("the decoder", False, 2, 5, 61.6)
    assert "2 of 5</span>" in shown("the decoder", False, 2, 5) and "left" not in shown("the decoder")


def test_what_would_fit_is_a_button_each():
    proposals = (
        events.Proposal(width=832, height=480, num_frames=81, bytes_per_device=1),
        events.Proposal(width=1280, height=720, num_frames=41, bytes_per_device=1),
    )
    html = stage_html(advance_view(StageView(), events.Failed("Too large", "It would fit at ...", proposals)), a_job(), ENGLISH)
    assert html.count('data-act="fill:fits"') == 2 and 'data-value="832x480x81"' in html
    assert "832 × 480 · 81 frames" in html and "generates nothing yet" in html
    assert "fill:fits" not in stage_html(advance_view(StageView(), events.Failed("No", "Why")), a_job(), ENGLISH)
    clip = a_job(video="/data/runs/job-1/input-video.mp4", strength=0.5)
    assert 'data-act="edit:fits"' in stage_html(advance_view(StageView(), events.Failed("No", "", proposals)), clip, ENGLISH)
