"""Check projects, tags, filters and orders. A project is exported as one file, and is imported completely or not at all."""

import json
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from backend.engine.engine import Engine
from backend.engine.job import Selection
from backend.engine.projects import MOST_TAGS, Project
from backend.errors import RequestError
from backend.media.project_archive import FORMAT, MANIFEST
from backend.schemas.characters import MAX_FIGURES
from backend.schemas.prompts import CHARACTERS_PER_TOKEN
from backend.schemas.request import MOST_STORED_CHARACTERS, GenerationRequest
from backend.schemas.settings import SETTINGS
from backend.schemas.shots import MAX_SHOTS
from presets import list_presets, load_preset
from tests.backend.conftest import all_events, request
from tests.clip_files import counting_clip, run_ffmpeg


def made(engine: Engine, prompt: str = "a red square", owner: str = "ann", **changes) -> str:
    job = engine.submit(request(prompt, **changes), owner)
    all_events(engine, job.id)
    return job.id


def prompts(engine: Engine, **selection) -> list[str]:
    return [job.summary.prompt for job in engine.library.videos(Selection(owner="ann", **selection))]


def imported(engine: Engine, archive: Path, tmp_path: Path, owner: str = "ann") -> tuple[Project, int]:
    folder = tmp_path / f"unpacked-{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    return engine.sandbox.run_steps(engine.import_project_steps(archive, folder, owner))


def test_videos_are_found_by_project_tag_length_size_and_words_in_any_order(engine):
    film = engine.projects.create("ann", " Night  film ")
    first = made(engine, "a red square at night")
    engine.projects.set_current("ann", film.id)
    second = made(engine, "a blue square at noon", num_frames=33, width=128)
    engine.projects.set_current("ann", "")
    third = made(engine, "a green circle")
    engine.projects.set_tags(third, "#best, later")
    assert film.name == "Night film" and [project.videos for project in engine.projects.list_for_owner("ann")] == [1]
    assert prompts(engine, project=film.id) == ["a blue square at noon"]
    assert prompts(engine, project="") == ["a green circle", "a red square at night"]
    assert prompts(engine, words=("NIGHT", "red")) == prompts(engine, words=("red", "night")) == ["a red square at night"]
    assert prompts(engine, words=("#BEST",)) == ["a green circle"] and prompts(engine, words=("#bes",)) == []
    assert prompts(engine, order="oldest")[0] == "a red square at night"
    assert prompts(engine, order="longest")[0] == prompts(engine, order="largest")[0] == "a blue square at noon"
    assert len(prompts(engine, length="short")) == 3 and prompts(engine, length="long") == []
    assert len(prompts(engine, size="small")) == 3 and prompts(engine, size="720p") == []
    engine.projects.assign_video(first, "ann", film.id)
    engine.projects.assign_video(second, "bob", "")
    assert len(prompts(engine, project=film.id)) == 2, "another owner moves nothing"


def test_an_archived_project_is_out_of_sight_until_it_comes_back(engine):
    film = engine.projects.create("ann", "film")
    engine.projects.set_current("ann", film.id)
    made(engine)
    engine.projects.archive(film.id, "ann", True)
    assert prompts(engine) == [] and engine.projects.current("ann") == "" and len(prompts(engine, project=film.id)) == 1
    with pytest.raises(RequestError, match="cannot get new videos"):
        engine.projects.set_current("ann", film.id)
    engine.projects.archive(film.id, "ann", False)
    assert len(prompts(engine)) == 1
    engine.projects.delete(film.id, "ann")
    assert prompts(engine, project="") == ["a red square"], "its videos stay"


def test_names_are_checked_and_others_projects_are_none(engine):
    film = engine.projects.create("ann", "film")
    for name in ("FILM", "", "x" * 61):
        with pytest.raises(RequestError):
            engine.projects.create("ann", name)
    engine.projects.rename(film.id, "ann", "Film")
    assert engine.projects.create("bob", "film").name == "film"
    for do in (
        lambda: engine.projects.rename(film.id, "bob", "mine"),
        lambda: engine.projects.archive(film.id, "bob", True),
        lambda: engine.projects.delete(film.id, "bob"),
        lambda: engine.projects.set_current("bob", film.id),
        lambda: engine.projects.assign_video("any", "bob", film.id),
    ):
        with pytest.raises(RequestError, match="must be one of your projects"):
            do()
    with pytest.raises(RequestError, match="tags were given"):
        engine.projects.set_tags("any", " ".join(map(str, range(MOST_TAGS + 1))))


def test_the_operator_sees_their_own_projects_first_however_many_strangers_make(engine, monkeypatch):
    monkeypatch.setattr("backend.engine.projects.MOST_PROJECTS", 3)
    mine = engine.projects.create("operator", "z last by name")
    theirs = [engine.projects.create(f"stranger {number}", "a film") for number in range(5)]
    assert [project.id for project in engine.projects.list_for_owner(None, "operator")][0] == mine.id
    assert len(engine.projects.list_for_owner(None, "operator")) == 3, "what a page shows stays small"
    assert engine.projects.find(theirs[4].id, None) == theirs[4]


def test_a_project_comes_in_elsewhere_as_it_was(make_engine, tmp_path):
    here, there = make_engine(), make_engine(tmp_path / "elsewhere")
    film = here.projects.create("ann", "film")
    here.projects.set_current("ann", film.id)
    picture = tmp_path / "first.png"
    Image.new("RGB", (96, 96), (200, 30, 30)).save(picture)
    first = made(here, "from words")
    second = made(here, "from a picture", task="i2v", image=str(picture))
    here.projects.set_tags(second, "best")
    here.library.star(second, True)
    archive = tmp_path / "film.zip"
    assert here.sandbox.run_steps(here.export_project_steps(here.projects.find(film.id, "ann"), archive)) == 2
    project, count = imported(there, archive, tmp_path, "bob")
    assert (project.name, count, project.videos) == ("film", 2, 2)
    listed = there.library.videos(Selection(owner="bob", project=project.id, order="oldest"))
    jobs = [there.jobs.find(one.id) for one in listed]
    for job, before in zip(jobs, (here.jobs.find(first), here.jobs.find(second)), strict=True):
        old, new = here.events.result(before.id), there.events.result(job.id)
        assert job.request.for_sharing() == before.request.for_sharing() and job.created == before.created
        assert (job.folder / "video.mp4").read_bytes() == (before.folder / "video.mp4").read_bytes()
        assert (new.num_frames, new.fps, new.width, new.height) == (old.num_frames, old.fps, old.width, old.height)
        assert new.seconds == old.seconds and new.versions == old.versions
    assert jobs[1].is_starred and jobs[1].tags == ("best",) and not jobs[0].is_starred
    assert Path(jobs[1].request.image).parent == jobs[1].folder, "what it was made from is here too"
    assert imported(there, archive, tmp_path, "bob")[0].name == "film 2"
    again = there.submit(jobs[1].request.with_changes(seed=2), "bob")
    assert type(all_events(there, again.id)[-1]).__name__ == "Finished"


def test_a_film_with_its_sound_and_made_shots_comes_in_elsewhere(make_engine, tmp_path):
    here, there = make_engine(start_worker=False), make_engine(tmp_path / "elsewhere", start_worker=False)
    clip, music = str(counting_clip(tmp_path / "made.mp4", 20, 16, size=(96, 96))), str(tmp_path / "music.wav")
    run_ffmpeg("-f", "lavfi", "-i", "sine=440:d=3", music)
    rows = [{"video": clip, "num_frames": 20, "trim": (0.5, 1)}, {"video": clip, "num_frames": 20, "trim": (0, 0.25)}]
    film = here.projects.create("ann", "film")
    here.projects.set_current("ann", film.id)
    job = here.submit(GenerationRequest.from_preset(load_preset("wan-tiny"), shots=rows, track=music, seed=1), "ann")
    here.sandbox.run_steps(here.export_project_steps(here.projects.find(film.id, "ann"), tmp_path / "film.zip"))
    project, _ = imported(there, tmp_path / "film.zip", tmp_path, "bob")
    (listed,) = there.library.videos(Selection(owner="bob", project=project.id))
    found = there.jobs.find(listed.id)
    assert found.request.for_sharing() == job.request.for_sharing() and found.request.total_frames == 12
    assert {path.name for path in found.folder.iterdir()} == {path.name for path in job.folder.iterdir()}
    assert there.submit(found.request, "bob").state == "finished", "and is cut again"


def test_a_project_keeps_the_figures_of_its_storyboards_and_takes_them_along(make_engine, tmp_path):
    here, there = make_engine(), make_engine(tmp_path / "elsewhere", start_worker=False)
    for name in ("red", "blue"):
        Image.new("RGB", (40, 60), name).save(tmp_path / f"{name}.png")

    def story(*figures: tuple[str, str]) -> str:
        cast = [{"name": name, "image": str(tmp_path / f"{colour}.png")} for name, colour in figures]
        rows = [{"prompt": "Anna walks", "num_frames": 5}, {"prompt": "a street", "num_frames": 5}]
        request = GenerationRequest.from_preset(load_preset("wan-tiny-vace"), shots=rows, figures=cast, steps=1, seed=1)
        job = here.submit(request, "ann")
        all_events(here, job.id)
        return job.id

    film = here.projects.create("ann", "film")
    here.projects.set_current("ann", film.id)
    story(("Anna", "red"), ("../dog", "blue"))
    newest = here.jobs.find(story(("anna", "blue")))
    assert (
        here.jobs.find(f"{newest.id}-shot-1").request.references and not here.jobs.find(f"{newest.id}-shot-2").request.references
    )
    known = here.library.characters("ann", film.id, 8)
    assert list(known) == ["anna", "../dog"] and known["anna"] == newest.request.figure_images[0]
    assert Image.open(known["anna"]).getpixel((0, 0)) == (0, 0, 255) and list(here.library.characters("ann", film.id, 1)) == [
        "anna"
    ]
    assert here.library.characters("bob", film.id, 8) == here.library.characters("ann", "", 8) == {}
    here.sandbox.run_steps(here.export_project_steps(here.projects.find(film.id, "ann"), tmp_path / "film.zip"))
    project, count = imported(there, tmp_path / "film.zip", tmp_path, "bob")
    taken = there.library.characters("bob", project.id, 8)
    assert count == 6 and list(taken) == ["anna", "../dog"] and Image.open(taken["anna"]).getpixel((0, 0)) == (0, 0, 255)
    assert all(Path(path).is_relative_to(tmp_path / "elsewhere") for path in taken.values())
    story_there = next(job for job in there.library.videos(Selection(owner="bob", project=project.id, has_characters=True)))
    assert there.jobs.find(story_there.id).request.for_sharing() == newest.request.for_sharing()


def hostile(archive: Path, name: str) -> None:
    """A hostile project file."""
    with zipfile.ZipFile(archive) as good:
        manifest = json.loads(good.read(MANIFEST))
        video = good.read("videos/0001.mp4")
    kind, files = zipfile.ZIP_STORED, {"videos/0001.mp4": video}
    one = manifest["videos"][0]
    if name == "no video":
        files["videos/0001.mp4"] = b"#!/bin/sh\n"
    elif name == "compressed":
        kind = zipfile.ZIP_DEFLATED
    elif name == "climbs out":
        files["../../evil.mp4"] = video
    elif name == "a file of the server":
        one["file"] = "/etc/passwd"
    elif name == "an input of the server":
        one["inputs"] = {"image": ["/etc/passwd"]}
    elif name == "no list":
        manifest["videos"] = {"0": one}
    elif name == "empty":
        manifest["videos"] = []
    elif name == "no request":
        one["request"] = "x"
    elif name == "a wrong request":
        one["request"] |= {"width": "wide"}
    elif name == "a video twice":
        manifest["videos"] = [one, one]
    elif name == "a file twice":
        files["inputs/0001-image-1.png"] = b"x"
        one["inputs"] = {"image": ["inputs/0001-image-1.png"] * 2}
    elif name == "a wrong storyboard":
        one["request"] |= {"shots": [{"prompt": "x"}] * 2, "preset": "nothing"}
    elif name == "too many shots":
        one["request"] |= {"shots": [{"prompt": "x"}] * 50_000}
    elif name == "a long story":
        one["request"] |= {"cues": [{"frame": 0, "prompt": "x" * 40_000}] * 10}
    elif name == "many cues":
        one["request"] |= {"cues": [{"block": place} for place in range(3000)]}
    elif name == "many guidances":
        one["request"] |= {"guidance": [1.0] * 8}
    elif name == "a long prompt":
        one["request"] |= {"prompt": "x" * 9000}
    elif name == "half a character":
        one["request"] |= {"action": "\ud800"}
    elif name == "deep":
        one["tags"] = json.loads("[" * 900 + "]" * 900)
    elif name == "another format":
        manifest["format"] = f"{FORMAT}0"
    with zipfile.ZipFile(archive, "w", kind) as bad:
        for path, data in files.items():
            bad.writestr(path, data)
        bad.writestr(MANIFEST, json.dumps(manifest))
    if name == "no zip":
        archive.write_bytes(b"PK\x03\x04 no zip at all")
    elif name == "cut":
        archive.write_bytes(archive.read_bytes()[:-100])
    elif name == "front cut":
        archive.write_bytes(archive.read_bytes()[100:])


NAMES = (
    *("no video", "compressed", "climbs out", "a file of the server", "an input of the server", "no list", "empty"),
    *("deep", "a long story", "a wrong storyboard", "too many shots", "many cues", "many guidances", "a long prompt"),
    *("half a character", "front cut"),
    *("no request", "a wrong request", "another format", "no zip", "cut", "a video twice", "a file twice"),
)


def test_a_hostile_project_is_refused_whole_with_one_sentence(engine, tmp_path):
    film = engine.projects.create("ann", "film")
    engine.projects.set_current("ann", film.id)
    made(engine)
    good = tmp_path / "good.zip"
    engine.sandbox.run_steps(engine.export_project_steps(engine.projects.find(film.id, "ann"), good))
    before = sorted(path.name for path in engine.settings.runs_dir.iterdir())
    for name in NAMES:
        archive = tmp_path / "bad.zip"
        archive.write_bytes(good.read_bytes())
        hostile(archive, name)
        with pytest.raises(RequestError) as caught:
            imported(engine, archive, tmp_path)
        assert "\n" not in str(caught.value) and str(tmp_path) not in str(caught.value) and "passwd" not in str(caught.value), (
            name
        )
    assert [project.name for project in engine.projects.list_for_owner("ann")] == ["film"]
    assert sorted(path.name for path in engine.settings.runs_dir.iterdir()) == before


def test_no_preset_allows_more_than_a_request_from_elsewhere_may_have():
    presets, most = list_presets(), {name: setting.max_imported_length for name, setting in SETTINGS.items()}
    assert max(preset.max_prompt_tokens for preset in presets) * CHARACTERS_PER_TOKEN <= most["prompt"]
    blocks = [1 + (one.max_frames - one.first_frames) // one.frame_step for one in presets if one.live]
    assert max(blocks) <= most["cues"] < 2 * max(blocks)
    assert max(preset.num_experts for preset in presets) == most["guidance"]
    assert (MAX_SHOTS, MAX_FIGURES) == (most["shots"], most["figures"])
    assert MAX_SHOTS * most["prompt"] <= MOST_STORED_CHARACTERS


def test_a_name_is_visible_text(engine):
    for name in ("a\x00b", "a\x1b[31mb", "a\u202eb", "a\ud800b", "a\x85\x00"):
        with pytest.raises(RequestError, match="visible characters"):
            engine.projects.create("ann", name)


def test_lists_read_a_request_once(engine, monkeypatch):
    made(engine)
    prompts(engine)
    parsed = []
    read = GenerationRequest.from_stored
    monkeypatch.setattr(GenerationRequest, "from_stored", lambda data: parsed.append(data) or read(data))
    assert prompts(engine) == prompts(engine) == ["a red square"] and not parsed


def test_inputs_that_the_request_names_are_never_opened(engine, tmp_path):
    """An import opens only files of the archive, and drops paths in the settings."""
    film = engine.projects.create("ann", "film")
    engine.projects.set_current("ann", film.id)
    made(engine)
    archive = tmp_path / "film.zip"
    engine.sandbox.run_steps(engine.export_project_steps(engine.projects.find(film.id, "ann"), archive))
    with zipfile.ZipFile(archive) as good:
        manifest, video = json.loads(good.read(MANIFEST)), good.read("videos/0001.mp4")
    manifest["videos"][0]["request"] |= {"image": "/etc/hostname", "sound": "/etc/passwd"}
    manifest["videos"][0] |= {"tags": [1, "a" * 100], "created": "soon", "starred": "yes", "notes": 7, "seconds": {"total": "x"}}
    with zipfile.ZipFile(archive, "w") as bad:
        bad.writestr("videos/0001.mp4", video)
        bad.writestr(MANIFEST, json.dumps(manifest))
    project, _ = imported(engine, archive, tmp_path)
    (listed,) = engine.library.videos(Selection(project=project.id))
    job = engine.jobs.find(listed.id)
    assert (job.request.image, job.request.sound, job.tags, job.is_starred) == (None, None, (), False)


def test_what_a_project_says_of_its_videos_can_be_shown(engine, tmp_path):
    """Values that are not numbers, and characters that cannot be shown or sent, would break the library for all, also for the
    operator.
    """
    film = engine.projects.create("ann", "film")
    engine.projects.set_current("ann", film.id)
    made(engine)
    archive = tmp_path / "film.zip"
    engine.sandbox.run_steps(engine.export_project_steps(engine.projects.find(film.id, "ann"), archive))
    with zipfile.ZipFile(archive) as good:
        manifest, video = json.loads(good.read(MANIFEST)), good.read("videos/0001.mp4")
    manifest["name"] = "\ud800 night\u202e film\x00"
    manifest["videos"][0] |= {"notes": ["a \ud800 note"], "versions": {"jax\ud800": "\u202e1.0"}}
    manifest["videos"][0]["request"]["preset"] = "a model of elsewhere"
    numbers = {"total": float("inf"), "denoise": float("nan"), "load": -1, "encode": 10**90, "decode": True, "save": 1.5}
    manifest["videos"][0]["seconds"] = numbers
    with zipfile.ZipFile(archive, "w") as bad:
        bad.writestr("videos/0001.mp4", video)
        bad.writestr(MANIFEST, json.dumps(manifest))
    project, _ = imported(engine, archive, tmp_path)
    (job,) = engine.library.videos(Selection(project=project.id))
    result = engine.events.result(job.id)
    assert project.name == "night film" and job.summary.total_frames == job.summary.num_frames
    assert (result.notes, result.versions, result.seconds) == (("a note",), {"jax": "1.0"}, {"save": 1.5})
