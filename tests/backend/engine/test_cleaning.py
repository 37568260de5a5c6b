"""Check which files of the data folder are removed and which stay, in the plan and on real files."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from backend.engine import cleaning
from backend.engine.cleaning import Clock, Limits, plan_removals, trim_folder
from backend.engine.job import EndedJob, Selection
from backend.engine.scheduling import QueueLimits
from backend.engine.sizes import Size, folder_size
from backend.engine.store import Store
from backend.errors import JobNotFound, RequestError
from backend.schemas.events import Failed, Finished, Interrupted, Queued, Step
from backend.settings import PROJECT_FOLDER
from tests.backend.conftest import all_events, request, wait_for
from tests.backend.engine.test_database import make_older
from tests.clock import is_within

NOW, HOUR, DAY = 1_000_000_000.0, 3600.0, 24 * 3600.0
GB = 10**9


def ended(name: str, days: float = 2.0, **changes) -> EndedJob:
    """Return a job that ended `days` days ago."""
    values = {"deleted": None, "has_video": True, "is_starred": False, "is_cleaned": True} | changes
    return EndedJob(id=name, folder=Path("/runs") / name, ended=NOW - days * DAY, **values)


def planned(*jobs: EndedJob, sizes: dict[str, Size] | None = None, unended: int = 0, is_clock_trusted: bool = True, **limits):
    sizes = {job.id: Size(intermediate=0 if job.is_cleaned else GB, rest=GB) for job in jobs} | (sizes or {})
    removals = plan_removals(jobs, sizes, Limits(**limits), NOW, unended=unended, is_clock_trusted=is_clock_trusted)
    return [(removal.category, removal.job.id) for removal in removals]


def test_intermediate_files_go_an_hour_after_the_end_and_once():
    late, early, done = ended("late", 0.5 / 24, is_cleaned=False), ended("early", 2 / 24, is_cleaned=False), ended("done")
    assert planned(done, early, late) == [("intermediate", "early")]


def test_without_limits_only_the_bin_loses_videos_after_a_week():
    long, short = ended("long", 30, deleted=NOW - 8 * DAY), ended("short", 30, deleted=NOW - 6 * DAY)
    assert planned(long, short, ended("old", 3000)) == [("bin", "long")]


def test_old_videos_go_by_their_age_and_starred_ones_stay():
    old, starred, young = ended("old", 31), ended("starred", 31, is_starred=True), ended("young", 29)
    assert planned(old, starred, young, days=30) == [("videos", "old")]
    assert planned(ended("now", 0.5 / 24), days=0) == []


def test_the_shots_of_a_storyboard_have_intermediate_files_too(tmp_path):
    shot = tmp_path / "shots" / "2"
    (shot / "previews").mkdir(parents=True)
    for name in ("stage2_state.safetensors", "frames.npy", "previews/step-001.png", "video.mp4", "last.png", "shot.json"):
        (shot / name).write_bytes(b"x" * 10)
    assert folder_size(tmp_path) == Size(intermediate=30, rest=30)


def test_for_space_intermediates_go_first_then_the_bin_then_the_oldest():
    jobs = (
        ended("oldest", 5),
        ended("starred", 4, is_starred=True),
        ended("second", 3),
        ended("in the bin", 2.5, deleted=NOW - 1 * DAY),
        ended("longer in the bin", 2, deleted=NOW - 2 * DAY),
        ended("just now", 0.5 / 24, is_cleaned=False),
    )
    assert planned(*jobs, gigabytes=7) == []
    assert planned(*jobs, gigabytes=6) == [("intermediate", "just now")]
    assert planned(*jobs, gigabytes=4) == [("intermediate", "just now"), ("bin", "longer in the bin"), ("bin", "in the bin")]
    assert planned(*jobs, gigabytes=3)[3:] == [("videos", "oldest")]
    assert planned(*jobs, gigabytes=0)[3:] == [("videos", "oldest"), ("videos", "second")]


def test_what_waits_or_runs_counts_and_is_not_touched():
    assert planned(ended("a", 3), ended("b"), unended=2 * GB, gigabytes=3) == [("videos", "a")]


def test_a_starred_video_in_the_bin_has_its_week():
    job = ended("both", 40, is_starred=True, deleted=NOW - 6 * DAY)
    assert planned(job, days=1, gigabytes=0) == []
    assert planned(replace(job, deleted=NOW - 8 * DAY)) == [("bin", "both")]


def test_while_the_clock_may_be_wrong_no_video_goes_by_age():
    jobs = ended("old", 3000), ended("in the bin", 3000, deleted=NOW - 3000 * DAY), ended("fresh", 3000, is_cleaned=False)
    assert planned(*jobs, days=1, is_clock_trusted=False) == [("intermediate", "fresh")]
    assert len(planned(*jobs, days=1)) == 3


@pytest.mark.bench
def test_ten_thousand_jobs_are_planned_in_a_moment():
    jobs = [ended(str(number), 10, is_cleaned=number % 2 == 0) for number in range(10_000)]
    began = time.thread_time()  # processor time, because planning never waits
    assert len(planned(*jobs, days=20, gigabytes=1)) > 10_000
    assert is_within(time.thread_time() - began, 1)


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The times of the wall clock and of the steady clock. Tests assign new values."""
    hands = [NOW, 1000.0]
    monkeypatch.setattr(time, "time", lambda: hands[0])
    monkeypatch.setattr(cleaning, "_steady_seconds", lambda: hands[1])
    return hands


def test_a_clock_that_jumps_is_not_trusted_for_a_day(clock):
    ours = Clock()
    assert ours.is_trusted(newest=NOW)
    clock[:] = [NOW + 40 * DAY, 1000.0 + HOUR]
    assert not ours.is_trusted(newest=NOW) and not ours.is_trusted(newest=NOW + 40 * DAY)
    clock[:] = [NOW + 42 * DAY, 1000.0 + 2 * DAY]
    assert ours.is_trusted(newest=NOW)


def test_a_clock_far_ahead_of_the_store_is_not_trusted_at_the_start(clock):
    ours = Clock()
    assert not ours.is_trusted(newest=NOW - 40 * DAY) and ours.is_trusted(newest=NOW - HOUR)
    clock[:] = [NOW + 2 * DAY, 1000.0 + 2 * DAY]
    assert ours.is_trusted(newest=NOW - 40 * DAY)


def a_video(engine, prompt: str = "a red square") -> str:
    """Return a job whose folder has the files of a real pipeline besides the video."""
    job = engine.submit(request(prompt))
    all_events(engine, job.id)
    for name in ("stage1_embeddings.safetensors", "stage2_latents.safetensors", ".lock", ".video.mp4.ab12.part"):
        (job.folder / name).write_bytes(bytes(1000))
    return job.id


@pytest.fixture
def age(engine) -> Callable[..., None]:
    """A function that makes jobs older: `age(days, job_id, ...)`."""

    def make_older(days: float, *job_ids: str) -> None:
        for job_id in job_ids:
            engine._store.tables.execute("UPDATE jobs SET ended = ended - ? WHERE id = ?", (days * DAY, job_id))

    a_video(engine)  # a new job, so that the clock is trusted
    return make_older


def names(folder: Path) -> set[str]:
    """Return all files in the folder. Cleaning may run at the same time."""
    return {str(Path(place, name).relative_to(folder)) for place, _, files in os.walk(folder) for name in files}


def test_an_hour_after_the_end_only_the_video_and_its_request_are_left(engine, age):
    job_id = a_video(engine)
    folder = engine.jobs.find(job_id).folder
    assert engine.cleaner.clean() == {} and "previews/step-003.png" in names(folder)
    previews = sum(path.stat().st_size for path in folder.glob("previews/*"))
    age(0.1, job_id)
    assert engine.cleaner.clean() == {"intermediate": 4000 + previews}
    assert names(folder) == {"request.json", "video.mp4", "steps_done"} and not (folder / "previews").exists()
    assert engine.cleaner.clean() == {}


def test_a_job_that_waits_or_runs_loses_nothing(make_engine, close_gate):
    engine, gate = make_engine(limits=Limits(days=0, gigabytes=0)), close_gate("a held square")
    running, waiting = (engine.submit(request("a held square")) for _ in range(2))
    wait_for(lambda: isinstance(engine.events.last(running.id), Step))
    for job in (running, waiting):
        (job.folder / "stage1_embeddings.safetensors").write_bytes(bytes(1000))
    engine._store.tables.execute("UPDATE jobs SET created = 5, started = 6, deleted = 7, has_video = 1", ())
    before, events = names(running.folder), len(engine._store.events.list_events(running.id))
    assert engine.cleaner.clean() == {}
    assert names(running.folder) >= before and "stage1_embeddings.safetensors" in names(waiting.folder)
    assert len(engine._store.events.list_events(running.id)) >= events
    gate.open()
    for job in (running, waiting):
        assert isinstance(all_events(engine, job.id)[-1], Finished)


def test_a_job_without_a_video_keeps_its_last_preview(engine, age):
    job = engine.submit(request("a fall", steps=4))
    assert isinstance(all_events(engine, job.id)[-1], Failed)
    age(0.1, job.id)
    engine.cleaner.clean()
    assert names(job.folder) == {"request.json", "previews/step-002.png", "steps_done", "stumbled"}
    assert [event.preview for event in all_events(engine, job.id) if isinstance(event, Step)] == ["previews/step-002.png"]


def test_the_first_event_the_interruptions_and_the_last_stay(engine, age):
    job = engine.submit(request("a trip", steps=4))
    before = engine._store.events.list_events(job.id) and all_events(engine, job.id)
    age(0.1, job.id)
    engine.cleaner.clean()
    after = list(engine.event_log.follow(job.id))
    assert [type(event) for _, event in after] == [Queued, Interrupted, Finished]
    assert after[-1] == (len(before), before[-1]) and engine.events.interruptions(job.id) == [after[1][1]]
    assert list(engine.event_log.follow(job.id, after=len(before))) == []
    assert engine.events.result(job.id) == before[-1].result


def test_videos_go_by_age_and_the_starred_stay(make_engine, caplog):
    engine = make_engine()
    old, starred, young = (a_video(engine) for _ in range(3))
    engine.library.star(starred, True)
    for job_id in (old, starred):
        engine._store.tables.execute("UPDATE jobs SET ended = ended - ? WHERE id = ?", (31 * DAY, job_id))
    folder, size = engine.jobs.find(old).folder, folder_size(engine.jobs.find(old).folder).total
    engine.cleaner.limits = Limits(days=30)
    changes = engine.event_log.count_changes()
    freed = engine.cleaner.clean()
    assert freed["videos"] == size and set(freed) == {"videos", "intermediate"}
    assert not folder.exists() and engine.jobs.find(starred).folder.is_dir() and engine.jobs.find(young).folder.is_dir()
    with pytest.raises(JobNotFound):
        engine.jobs.find(old)
    assert engine._store.events.list_events(old) == [] and engine.event_log.count_changes() > changes
    assert "Cleaning freed" in caplog.text and "videos" in caplog.text


def test_videos_go_by_size_oldest_first(make_engine):
    engine = make_engine()
    first, second, third, starred = (a_video(engine) for _ in range(4))
    engine.library.star(starred, True)
    engine._store.tables.execute("UPDATE jobs SET ended = ended - ?", (DAY / 2,))
    engine.cleaner.clean()
    each = folder_size(engine.jobs.find(first).folder).total
    engine.cleaner.limits = Limits(gigabytes=2.5 * each / 1e9)
    engine.cleaner.clean()
    assert {job.id for job in engine.jobs.list_jobs()} == {third, starred}
    engine.cleaner.limits = Limits(gigabytes=0)
    engine.cleaner.clean()
    assert {job.id for job in engine.jobs.list_jobs()} == {starred}
    assert [path.name for path in engine.settings.runs_dir.iterdir()] == [starred]


def test_a_video_that_is_starred_or_taken_back_in_the_last_moment_stays(engine, age, monkeypatch):
    starred, restored = a_video(engine), a_video(engine)
    age(31, starred, restored)
    engine.library.delete(restored)
    engine._store.tables.execute("UPDATE jobs SET deleted = deleted - ? WHERE id = ?", (30 * DAY, restored))
    engine.cleaner.limits = Limits(days=30)

    def plan_late(*given, **more):
        found = plan_removals(*given, **more)
        engine.library.star(starred, True)
        engine.library.restore(restored)
        return found

    monkeypatch.setattr(cleaning, "plan_removals", plan_late)
    engine.cleaner.clean()
    assert engine.jobs.find(starred).folder.is_dir() and engine.jobs.find(restored).folder.is_dir()


def test_a_store_that_was_moved_here_deletes_no_files_elsewhere(engine, age, tmp_path):
    job_id, elsewhere = a_video(engine), tmp_path / "elsewhere" / "job"
    elsewhere.mkdir(parents=True)
    for name in ("video.mp4", "stage2_latents.safetensors"):
        (elsewhere / name).write_bytes(b"x")
    age(31, job_id)
    engine._store.tables.execute("UPDATE jobs SET folder = ? WHERE id = ?", (str(elsewhere), job_id))
    engine.cleaner.clean()
    assert len(names(elsewhere)) == 2
    engine.cleaner.limits = Limits(days=30)
    engine.cleaner.clean()
    assert len(names(elsewhere)) == 2 and job_id not in {job.id for job in engine.jobs.list_jobs()}


def test_it_runs_at_the_start_and_again_by_itself(make_engine, monkeypatch):
    monkeypatch.setattr(cleaning, "_EVERY_SECONDS", 0.2)
    engine = make_engine()
    for _ in range(2):
        job_id = a_video(engine)
        engine._store.tables.execute("UPDATE jobs SET ended = ended - ? WHERE id = ?", (2 * HOUR, job_id))
        wait_for(lambda: names(engine.jobs.find(job_id).folder) == {"request.json", "video.mp4", "steps_done"})  # noqa: B023
    engine.close()


def test_a_folder_deleted_by_hand_ends_no_cleaning(engine, age):
    import shutil

    job_id, other = a_video(engine), a_video(engine)
    shutil.rmtree(engine.jobs.find(job_id).folder)
    age(2, job_id, other)
    engine.cleaner.clean()
    assert names(engine.jobs.find(other).folder) == {"request.json", "video.mp4", "steps_done"}
    shutil.rmtree(engine.settings.runs_dir)
    engine.cleaner.limits = Limits(days=1)
    engine.cleaner.clean()
    assert {job_id, other}.isdisjoint(job.id for job in engine.jobs.list_jobs())


def test_saved_comparisons_go_with_their_videos_and_after_a_month(engine, age):
    one, two, three = (a_video(engine) for _ in range(3))
    exports = engine.settings.comparisons_dir
    exports.mkdir()
    found = [engine.user_presets.compare("ann", jobs) for jobs in ((one, two), (two, three), (one, three), (three,))]
    for comparison in found:
        (exports / f"{comparison.id}.mp4").write_bytes(bytes(50))
        (exports / f"{comparison.id}.2.mp4").write_bytes(bytes(50))
    (exports / "unknown.mp4").write_bytes(bytes(100))
    (exports / ".old.mp4.ab12.part").write_bytes(bytes(100))
    (exports / ".new.mp4.ab12.part").write_bytes(bytes(100))
    os.utime(exports / ".old.mp4.ab12.part", (time.time() - 2 * HOUR,) * 2)
    for name in (f"{found[2].id}.mp4", f"{found[2].id}.2.mp4"):
        os.utime(exports / name, (time.time() - 31 * DAY,) * 2)
    engine._store.jobs.forget(two)
    assert engine.cleaner.clean() == {"comparisons": 500}
    assert names(exports) == {f"{found[3].id}.mp4", f"{found[3].id}.2.mp4", ".new.mp4.ab12.part"}
    engine.library.delete(three)
    assert engine.cleaner.clean() == {"comparisons": 100} and engine.user_presets.comparison(found[3].id)
    engine._store.jobs.forget(three)
    engine.cleaner.clean()
    assert [engine.user_presets.comparison(one.id) is not None for one in found] == [True, False, True, False]


def test_a_long_log_keeps_its_end_while_its_writer_continues(engine, monkeypatch):
    monkeypatch.setattr(cleaning, "MOST_LOG", 1000)
    wait_for(lambda: engine.pool.status().state == "ready")
    path = engine.pool.workers()[0].log
    all_events(engine, engine.submit(request("noise")).id)
    size = path.stat().st_size
    assert size > 1000
    assert engine.cleaner.clean() == {"logs": size - 500}
    assert path.stat().st_size == 500 and path.read_text().endswith("noise\n\n")
    all_events(engine, engine.submit(request("noise")).id)
    assert b"\0" not in path.read_bytes() and path.read_text().count("noise") > 1000


def test_compiled_programs_go_those_first_that_were_used_longest_ago(engine, monkeypatch, tmp_path):
    settings = replace(engine.settings, cache_dir=tmp_path / "cache")
    for folder in (settings.compiled_dir, settings.executables_dir):
        folder.mkdir(parents=True)
        for number in range(5):
            path = folder / f"program-{number}-cache"
            path.write_bytes(bytes(100))
            os.utime(path, (time.time() - 1000 + (0 if number == 3 else -number), 5))
    monkeypatch.setattr(cleaning, "MOST_COMPILED", 250)
    engine.cleaner._settings = settings
    assert engine.cleaner.clean() == {"compiled": 300}
    assert names(settings.compiled_dir) == {"program-3-cache", "program-0-cache"} and len(names(settings.executables_dir)) == 5


def test_uploads_of_the_last_hour_stay(tmp_path):
    for name, age in (("old", 2 * HOUR), ("older", 3 * HOUR), ("new", 60.0)):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    assert trim_folder(tmp_path, 200, spare_seconds=HOUR) == 100 and names(tmp_path) == {"old", "new"}
    assert trim_folder(tmp_path, 0, spare_seconds=HOUR) == 100 and names(tmp_path) == {"new"}
    assert trim_folder(tmp_path / "missing", 0) == 0


def test_life_signs_of_dead_engines_go(engine):
    folder = engine.settings.engines_dir
    for name, age in (("1-dead", 2 * HOUR), ("2-starting", 0.0)):
        (folder / name).touch()
        os.utime(folder / name, (time.time() - age,) * 2)
    os.utime(folder / engine._lock.name, (time.time() - 2 * HOUR,) * 2)
    engine.cleaner.clean()
    assert names(folder) == {"2-starting", engine._lock.name}


def test_a_request_that_was_never_queued_goes_after_a_day_and_a_video_stays(engine, age):
    kept, runs = a_video(engine), engine.settings.runs_dir
    for name, file, days in (("half", "request.json", 2), ("now", "request.json", 0.5), ("foreign", "video.mp4", 2)):
        (runs / name).mkdir()
        (runs / name / file).write_bytes(b"content")
        os.utime(runs / name, (time.time() - days * DAY,) * 2)
    os.utime(runs / kept, (time.time() - 2 * DAY,) * 2)
    assert engine.cleaner.clean()["intermediate"] >= len(b"content")
    assert not (runs / "half").exists() and all((runs / name).exists() for name in (kept, "now", "foreign"))


def test_the_usage_adds_up(engine, age):
    kept, binned = a_video(engine), a_video(engine)
    age(1, kept)
    engine.cleaner.clean()
    engine.library.delete(binned)
    engine.settings.comparisons_dir.mkdir()
    (engine.settings.comparisons_dir / "a.mp4").write_bytes(bytes(70))
    (engine.settings.logs_dir / "a.log").write_bytes(bytes(3))
    usage = engine.cleaner.usage()
    everything = sum(path.stat().st_size for path in engine.settings.runs_dir.rglob("*") if path.is_file())
    assert usage["videos"] + usage["intermediate"] + usage["bin"] == everything
    assert usage["bin"] == folder_size(engine.jobs.find(binned).folder).total and usage["intermediate"] > 4000
    assert usage["comparisons"] == 70 and usage["logs"] == 3 and usage["store"] > 0 and usage["uploads"] == 0
    (engine.settings.comparisons_dir / "a.mp4").unlink()
    assert engine.cleaner.usage() == usage
    engine.cleaner.clean()
    assert engine.cleaner.usage()["comparisons"] == 0


def test_two_servers_clean_one_folder_at_the_same_time(make_engine):
    from concurrent.futures import ThreadPoolExecutor

    first, second = make_engine(), make_engine()
    jobs = [a_video(first) for _ in range(6)]
    first._store.tables.execute("UPDATE jobs SET ended = ended - ?", (DAY / 2,))
    first.cleaner.limits = second.cleaner.limits = Limits(gigabytes=0)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda engine: engine.cleaner.clean(), [first, second] * 2))
    assert first.jobs.list_jobs() == [] and not any((first.settings.runs_dir / job_id).exists() for job_id in jobs)


def test_a_store_from_before_has_the_marks_that_cleaning_needs(tmp_path):
    store = Store(tmp_path / "jobs.sqlite3")
    store.close()
    make_older(tmp_path / "jobs.sqlite3", jobs=["cleaned"])
    with closing(Store(tmp_path / "jobs.sqlite3")) as store:
        assert store.files.ended_jobs() == []


def test_cleaning_brings_no_jax():
    code = "import sys, json, backend.engine.cleaning; print(json.dumps(sorted({'jax', 'torch'} & set(sys.modules))))"
    told = subprocess.run([sys.executable, "-c", code], cwd=PROJECT_FOLDER, capture_output=True, text=True, check=True)
    assert json.loads(told.stdout) == []


def room() -> QueueLimits:
    """Return the limits of the queue for a visitor."""
    return QueueLimits(of_owner=20, of_address=40, in_all=100)


def kept_bytes(engine) -> int:
    return sum(folder_size(folder).total for folder in engine.settings.runs_dir.iterdir())


def finished_job(engine, owner: str) -> str:
    job = engine.submit(request(), owner, room())
    all_events(engine, job.id)
    return job.id


def test_deleted_videos_beyond_the_budget_go_at_once_the_oldest_first(engine, monkeypatch):
    jobs, others = [finished_job(engine, "ann") for _ in range(4)], finished_job(engine, "bob")
    one = engine._store.files.stored_bytes("bob")
    assert engine._store.files.stored_bytes("ann") == 4 * one > 0 and engine._store.files.stored_bytes(None) == kept_bytes(engine)
    monkeypatch.setattr(cleaning, "BIN_BYTES_OF_OWNER", 2 * one + one // 2)
    for job_id in (*jobs[:3], others):
        engine.library.delete(job_id)
    left = {folder.name for folder in engine.settings.runs_dir.iterdir()}
    assert left == {*jobs[1:], others}, "the job that was deleted first is gone for good, with its files"
    engine.library.restore(jobs[1])
    assert engine.library.count(Selection(owner="ann")) == 2
    monkeypatch.setattr(cleaning, "BIN_BYTES", one + one // 2)
    engine.library.delete(jobs[3])
    assert {folder.name for folder in engine.settings.runs_dir.iterdir()} == {jobs[1], jobs[3]}, "all bins together are bounded"


def test_a_visitor_who_keeps_too_much_loses_deleted_videos_and_is_then_refused(engine, monkeypatch):
    jobs = [finished_job(engine, "ann") for _ in range(3)]
    monkeypatch.setattr(cleaning, "KEPT_BYTES", engine._store.files.stored_bytes("ann") - 1)
    engine.library.delete(jobs[0])
    assert not (engine.settings.runs_dir / jobs[0]).exists(), "deletion frees room at once where the budget needs it"
    monkeypatch.setattr(cleaning, "KEPT_BYTES", engine._store.files.stored_bytes("ann") - 1)
    with pytest.raises(RequestError, match="delete some of them"):
        engine.submit(request(), "ann", room())
    with pytest.raises(RequestError, match="delete some of them"):
        archive = engine.settings.data_dir / "project.zip"
        archive.write_bytes(b"x")
        engine.sandbox.run_steps(engine.import_project_steps(archive, engine.settings.data_dir, "ann", is_limited=True))
    finished_job(engine, "bob")
    all_events(engine, engine.submit(request(), "ann").id)  # without a visitor's limits
    engine.library.delete(jobs[1])
    engine.library.delete(jobs[2])
