"""Tests of opening a folder: only with a desktop, and the program gets only the folder as its argument."""

from wan_ui.library import view as desktop


def test_without_a_screen_or_an_opener_nothing_is_started(monkeypatch, tmp_path):
    monkeypatch.setattr(desktop, "has_screen", lambda: False)
    assert not desktop.open_folder(tmp_path)
    monkeypatch.setattr(desktop, "has_screen", lambda: True)
    monkeypatch.setattr(desktop, "OPENER", "no-such-program-anywhere")
    assert not desktop.open_folder(tmp_path)


def test_with_both_the_folder_is_its_only_argument(monkeypatch, tmp_path):
    opener, folder = tmp_path / "opener", tmp_path / "a folder; with signs"
    folder.mkdir()
    opener.write_text('#!/bin/sh\nprintf "%s" "$#:$1" > "$1/said"\n')
    opener.chmod(0o755)
    monkeypatch.setattr(desktop, "has_screen", lambda: True)
    monkeypatch.setattr(desktop, "OPENER", str(opener))
    started = []
    monkeypatch.setattr(desktop.subprocess, "Popen", _remembering(desktop.subprocess.Popen, started))
    assert desktop.open_folder(folder)
    started[0].wait(60)
    assert (folder / "said").read_text() == f"1:{folder}"


def _remembering(popen, started):
    def start(*words, **options):
        started.append(popen(*words, **options))
        return started[-1]

    return start
