"""Write the tables of settings and commands in docs/reference.md: `python -m backend.cli.reference`."""

import argparse
import re
from collections.abc import Iterator, Sequence

from backend.cli.command_line import build_parser
from backend.cli.options import option_name, option_value
from backend.schemas.settings import SETTINGS, Subject
from backend.settings import PROJECT_FOLDER

PAGE = PROJECT_FOLDER / "docs" / "reference.md"
_GENERATED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_SUBJECTS: dict[Subject, str] = {
    "core": "Every video",
    "picture": "First and last image",
    "clip": "A clip to restyle",
    "control": "Control",
    "sound": "Audio",
    "drive": "Animate",
    "live": "Live",
    "story": "Storyboards",
}
_SETTINGS = "| setting | option | values | default | API | meaning |\n|---|---|---|---|---|---|\n"
_OPTIONS = "| option | meaning |\n|---|---|\n"
_WITH_OPTION = {option_name(setting): setting for setting in SETTINGS.values() if setting.stage}


def page() -> str:
    """Return the page with up-to-date generated parts. The settings have one table for each `Setting.subject`. Each command has
    a section. One more section has the options that several commands have."""
    texts = []
    for subject, title in _SUBJECTS.items():
        texts.append(f"\n### {title}\n\n{_SETTINGS}")
        for setting in SETTINGS.values():
            if setting.subject == subject and (setting.stage or setting.for_programs):
                words = filter(None, (option_name(setting), option_value(setting)))
                option = f"`{' '.join(words)}`" if setting.stage else ""
                limits = setting.limits and " to ".join(f"{limit:g}" for limit in setting.limits)
                values = _code_list(setting.choices) or limits or ""
                api = "yes" if setting.for_programs else ""
                texts.append(_row(f"`{setting.name}`", option, values, setting.default_text, api, setting.description))
    commands = dict(list_parsers(build_parser()))
    users: dict[str, list[str]] = {}
    for name, (parser, _) in commands.items():
        for row in _option_rows(parser):
            if row.startswith("| `--"):
                users.setdefault(row, []).append(name)
    sections = []
    for name, (parser, about) in commands.items():
        words = [name, *(str(action.metavar) for action in parser._actions if not action.option_strings)]
        sections.append(f"\n### {name}\n\n`python app.py {' '.join(words)}`: {about}.\n")
        given = [action.option_strings[0] for action in parser._actions if _is_setting(action)]
        if len(given) == len(_WITH_OPTION):
            sections.append("\nIt takes every [setting](#settings).\n")
        elif given:
            sections.append(f"\n[Settings](#settings) that it takes: {_code_list(given)}.\n")
        rows = [row for row in _option_rows(parser) if len(users.get(row, ())) < 2]
        sections += ["\n" + _OPTIONS if rows else "", *rows]
    shared = [row.replace("\n", f" {_code_list(names)} |\n") for row, names in users.items() if len(names) > 1]
    table = f"| option | meaning | commands |\n|---|---|---|\n{''.join(shared)}"
    commands_text = f"{''.join(sections)}\n### Options of several commands\n\n{table}\n"
    parts = {"settings": "".join(texts) + "\n", "commands": commands_text}
    return _GENERATED.sub(lambda found: f"{found[1]}{parts[found[2]]}{found[3]}", PAGE.read_text("utf-8"))


def list_parsers(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, tuple[argparse.ArgumentParser, str]]]:
    """Yield (name, (parser, help)) for each command that has no subcommands, and for each subcommand, such as "keys list"."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for command, child in action.choices.items():
                nested = dict(list_parsers(child, f"{name}{command} "))
                yield from nested.items() if nested else [(f"{name}{command}", (child, helps[command]))]


def _option_rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield a table row for each argument, except `--help` and options that the table of settings contains."""
    for action in parser._actions:
        if action.help and action.help != argparse.SUPPRESS and not _is_setting(action) and action.dest != "help":
            values = f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.metavar or ""
            shown = " ".join([*action.option_strings[:1], "" if action.nargs == 0 else str(values)]).strip()
            yield _row(f"`{shown}`", action.help % {"default": action.default})


def _is_setting(action: argparse.Action) -> bool:
    """Return whether the table of settings contains this option with the same help text."""
    return any(
        option in _WITH_OPTION and action.help == _WITH_OPTION[option].help.replace("%", "%%") for option in action.option_strings
    )


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _code_list(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
