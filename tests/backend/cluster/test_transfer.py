"""Files between machines arrive complete, with names that stay in the job's folder."""

import os
from pathlib import Path

import pytest

from backend.cluster import transfer
from backend.cluster.transfer import Changes, Piece, check_name, list_files, move_paths, read_pieces, write_piece

BAD_NAMES = [
    "", ".", "..", "../x", "/etc/passwd", "a/../b", "a/b/c", "shots/a/b/c", "shots/1/2/3/4", "shots/../x/y", ".hidden", "previews/.part", "a//b", "a\0b", "a\n", "a/", "~/x",
    "a\\b", "x" * 101, 7, None,
]  # fmt: skip


@pytest.fixture
def sender_folder(tmp_path):
    folder = tmp_path / "there"
    folder.mkdir()
    return folder


@pytest.fixture
def receiver_folder(tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


def carry(changes: Changes, folder: Path) -> list[Piece]:
    pieces = [piece for group in changes.collect() for piece in group]
    for piece in pieces:
        write_piece(folder, piece)
    return pieces


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_could_lead_elsewhere_is_refused_and_nothing_is_written(name, receiver_folder, tmp_path):
    with pytest.raises(ValueError, match="must be the name of a file in the job's folder"):
        write_piece(receiver_folder, Piece(job_id="1", name=name, data=b"x"))
    assert list(receiver_folder.iterdir()) == [] and not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "name",
    [
        "video.mp4",
        "previews/step-001.png",
        "stage2_state.safetensors",
        "references-1.png",
        "shots/1/shot.json",
        "shots/12/previews/step-001.png",
    ],
)
def test_the_names_of_a_jobs_files_are_allowed(name):
    assert check_name(name) == name


def test_new_and_changed_files_are_carried_and_gone_ones_removed(sender_folder, receiver_folder):
    changes = Changes("1", sender_folder)
    (sender_folder / "previews").mkdir()
    (sender_folder / "previews/a.png").write_bytes(b"a")
    (sender_folder / "state").write_bytes(b"one")
    carry(changes, receiver_folder)
    assert (receiver_folder / "previews/a.png").read_bytes() == b"a" and (receiver_folder / "state").read_bytes() == b"one"
    (sender_folder / "new").write_bytes(b"two!")
    os.replace(sender_folder / "new", sender_folder / "state")
    (sender_folder / "previews/a.png").unlink()
    assert {(piece.name, piece.is_gone) for piece in carry(changes, receiver_folder)} == {
        ("state", False),
        ("previews/a.png", True),
    }
    assert (receiver_folder / "state").read_bytes() == b"two!" and not (receiver_folder / "previews/a.png").exists()
    assert carry(changes, receiver_folder) == []


def test_what_was_there_before_is_not_carried(sender_folder, receiver_folder):
    (sender_folder / "image.png").write_bytes(b"given")
    assert carry(Changes("1", sender_folder), receiver_folder) == []


def test_a_large_file_comes_in_pieces_and_appears_when_it_is_whole(sender_folder, receiver_folder, monkeypatch):
    monkeypatch.setattr(transfer, "PIECE_BYTES", 1000)
    content = os.urandom(2500)
    (sender_folder / "video.mp4").write_bytes(content)
    pieces = list(read_pieces("1", sender_folder, "video.mp4"))
    assert [len(piece.data) for piece in pieces] == [1000, 1000, 500]
    write_piece(receiver_folder, pieces[0]), write_piece(receiver_folder, pieces[1])
    assert not (receiver_folder / "video.mp4").exists()
    write_piece(receiver_folder, pieces[2])
    assert (receiver_folder / "video.mp4").read_bytes() == content and len(list(receiver_folder.iterdir())) == 1


def test_an_empty_file_is_a_file(sender_folder, receiver_folder):
    (sender_folder / "empty").touch()
    for piece in read_pieces("1", sender_folder, "empty"):
        write_piece(receiver_folder, piece)
    assert (receiver_folder / "empty").read_bytes() == b""


def test_a_file_that_has_gone_has_no_pieces(sender_folder):
    assert list(read_pieces("1", sender_folder, "never")) == []


def test_a_file_that_begins_again_replaces_what_had_come_of_it(receiver_folder):
    write_piece(receiver_folder, Piece(job_id="1", name="state", data=b"half", is_last=False))
    write_piece(receiver_folder, Piece(job_id="1", name="state", data=b"new"))
    assert (receiver_folder / "state").read_bytes() == b"new"


def test_links_hidden_files_and_what_is_quicker_made_again_stay(sender_folder, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (sender_folder / "link").symlink_to(tmp_path / "secret")
    (sender_folder / "folder").symlink_to(tmp_path)
    (sender_folder / ".state.part").touch()
    (sender_folder / "stage3_frames.safetensors").touch()
    (sender_folder / "deep/deeper").mkdir(parents=True)
    (sender_folder / "deep/deeper/file").touch()
    (sender_folder / "state").touch()
    (sender_folder / "shots/2/previews").mkdir(parents=True)
    for name in ("shot.json", "frames.npy", "stage3_frames.safetensors", "previews/a.png"):
        (sender_folder / "shots/2" / name).touch()
    assert sorted(list_files(sender_folder)) == ["shots/2/previews/a.png", "shots/2/shot.json", "state"]


def test_names_in_a_message_follow_the_folder_and_nothing_else_does():
    message = {"path": "/a/job/video.mp4", "folder": "/a/job", "n": [1, None, "/a/job2/x"], "prompt": "in /a/job/ there"}
    expected = {"path": "/b/video.mp4", "folder": "/b", "n": [1, None, "/a/job2/x"], "prompt": "in /a/job/ there"}
    assert move_paths(message, "/a/job", "/b") == expected and move_paths(expected, "/b", "/a/job") == message
