"""The prose check reports what breaks the writing rules, with the right line, and accepts plain texts and quotations."""

import pytest

from tests import prose


def rules(source: str, path: str = "backend/example.py") -> list[str]:
    return [finding.rule for finding in prose.check_source(path, source)]


def docstring(text: str) -> str:
    return f'def load_model(name):\n    """{text}"""\n'


BAD_AND_GOOD = {
    "word": [
        ("Make the shot anew.", "Generate the shot again."),
        ("Loading goes\n    on after a kill.", "Loading continues after a kill."),
        ("The log STANDS in the folder.", "The log is in the folder, standalone."),
        ("The host hasn't enough room.", "The host hasn't enough headroom."),
    ],
    "term": [
        ("Open the file in the cage.", "Open the file in the sandbox."),
        ("Caged processes end.", "Sandboxed processes on a desktop end."),
        ("The doors refuse it.", "The gateway refuses the door-to-door prompt."),
        ("Each lane has its keys.", "Each step context has keys in 128 lanes."),
    ],
    "long": [
        ("The " + "very " * 29 + "end.", "The " + "very " * 28 + "end."),
        ("Read names: " + "one, " * 30 + "two.", "Read names: `one`, `two` and `three`. " * 12),
    ],
    "fragment": [
        ("Return the latents, the sound's and the video's.", "Return the latents of audio and video."),
        ("Runs twice. Of two files the last is read.", "Runs twice. The last of two files is read."),
        ("The size is the model's.", "The size is the model's default. It's fixed, that's all."),
    ],
    "docstring": [
        ("For each frame the mean.", "Compute the mean for each frame."),
        ("Whether the model is loaded.", "Return whether the model is loaded."),
        ("What a model needs.", "The memory that a model needs."),
        ("[B, S] int32.", "Token ids, [B, S] int32."),
        ("Raises: ModelError.", "Load a model. Raises: ModelError."),
    ],
}


@pytest.mark.parametrize(("rule", "bad", "good"), [(rule, *pair) for rule, pairs in BAD_AND_GOOD.items() for pair in pairs])
def test_a_rule_reports_a_bad_docstring_and_accepts_a_good_one(rule, bad, good):
    assert {*rules(docstring(bad))} == {rule}
    assert rules(docstring(good)) == []


def test_a_comment_may_not_start_within_a_sentence():
    assert rules("MARGIN = 20  # of each tile\n") == rules("# which are loaded\n") == ["fragment"]
    assert rules("MARGIN = 20  # pixels of each tile\n# These are loaded,\n# which is quick.\n") == []


@pytest.mark.parametrize("name", ["of", "_of", "are", "is", "may", "go", "say", "within"])
def test_a_function_may_not_be_named_by_a_lone_preposition_or_auxiliary_verb(name):
    assert rules(f"class Job:\n    def {name}(self): ...\n") == ["function"]
    assert rules(f"class Job:\n    def {name}_job(self): ...\n    def __lt__(self): ...\n    {name} = 1\n") == []


def test_a_name_may_not_have_a_word_that_the_glossary_replaces():
    assert rules("class CagePool:\n    def open_cage(self): ...\n") == ["name", "name"]
    assert rules("class SandboxPool:\n    def open_sandbox(self): ...\n    def standby(self): ...\n") == []
    assert rules("def test_the_cage_opens(): ...\n", "tests/test_example.py") == []


@pytest.mark.parametrize(
    ("path", "source", "line"),
    [
        ("backend/a.py", "x = 1\n\n# A comment\n# that goes\n# on.\n", 3),
        ("backend/a.py", "x = 1  # goes on\ny = 2  # plain\n", 1),
        ("backend/a.py", 'def f():\n    """Return one.\n\n    It goes on.\n    """\n', 4),
        ("backend/a.py", 'raise ModelError(f"{name} is made "\n    "anew")\n', 1),
        ("wan_ui/i18n/english.py", 'label: str = "Make anew"\n', 1),
        ("wan_ui/i18n/english.py", 'label: str = "Go on"\n', 1),
        ("wan_ui/a.js", 'const url = "http://anew"; // plain\n/**\n * Draws.\n * It goes on.\n */\n', 4),
        ("wan_ui/a.js", "f(`goes on`, /[/*] anew/);\n// It goes on.\n", 2),
        ("wan_ui/a.css", "a { color: red }\n/* goes on */\n", 2),
        ("presets/a.toml", 'prompt = "a road goes on"\n# goes on\n', 2),
        ("presets/a.toml", 'prompt = "a road goes on"\ndescription = "It goes on."\n', 2),
        ("docs/a.md", "# Title\n\nA text that\ngoes on.\n\n```\ngoes on\n```\n", 3),
        ("docs/a.md", "> goes on\n\n- one\n- it goes on\n", 4),
        ("docs/a.md", "| a | b |\n|---|---|\n| c | goes on |\n", 3),
        ("docs/a.md", "Press *Make anew* in Edit.\n", 1),
    ],
)
def test_each_kind_of_text_is_read_and_its_line_reported(path, source, line):
    assert {finding.line for finding in prose.check_source(path, source) if finding.rule in ("word", "term")} == {line}


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("backend/a.py", docstring('Return `goes on`, ``anew`` and the text \\"shall\\".')),
        ("backend/a.py", "rows = db.execute('SELECT id AS a door FROM house WHERE stands anew')\n"),
        ("tests/test_a.py", 'prompt = "a door that stands anew"\n'),
        ("docs/a.md", 'He wrote "it goes on", see [the code](https://anew) and `shall`.\n'),
        ("backend/prompt_rewriting/a.toml", 'en = """\nIt goes on.\n"""\n'),
        ("presets/a.toml", 'prompts = ["a door that stands in a room"]\n[[examples]]\nprompt = "a house goes on"\n'),
        ("presets/a.toml", 'examples = [\n  "a cat sits there",\n  "a door that stands in a room",\n]\n'),
    ],
)
def test_quotations_are_not_checked(path, source):
    assert rules(source, path) == []


def test_the_glossary_has_a_replacement_for_each_entry_and_no_entry_twice():
    entries = list(prose.read_entries(prose.GLOSSARY.read_text("utf-8")))
    phrases = [entry.phrase for entry in entries]
    assert len(entries) > 100 and sorted(phrases) == sorted(set(phrases))
    assert [entry for entry in entries if not entry.instead] == []
    assert {entry.rule for entry in entries} == {"term", "word"}


def test_the_glossary_and_the_check_itself_break_no_rule():
    assert prose.check_files(["docs/glossary.md", "tests/prose.py", "tests/test_prose.py"]) == []


def test_the_command_prints_each_finding_and_the_counts(capsys, monkeypatch):
    finding = prose.Finding("backend/engine/a.py", 3, "word", "anew -> again", "Run anew.")
    monkeypatch.setattr(prose, "check_files", lambda paths: [finding] if "backend" in paths else [])
    assert prose.main(["backend"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "backend/engine/a.py:3: word: anew -> again | Run anew."
    assert lines[-2].split()[:1] == ["backend/engine"] and lines[-2].split()[-1] == "1"
    assert prose.main(["kernels"]) == 0


def test_no_text_or_name_of_the_project_breaks_a_rule():
    """`python -m tests.prose` prints the same list with counts for each package."""
    findings = prose.check_files()
    assert findings == [], f"{len(findings)} findings, the first:\n" + "\n".join(map(str, findings[:20]))
