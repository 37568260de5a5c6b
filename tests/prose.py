"""Find texts and names that break the writing rules of docs/glossary.md.

Run `python -m tests.prose [--counts] [--rule RULE] [PATH...]` in the project's folder. Without paths it reads all files that
git knows. Each finding has its file and line, the rule, what was found with what to write instead, and the sentence. Counts per
package and rule follow. The exit code is 1 if there are findings.

Quotations are not checked: text between double quotation marks or backticks, code blocks and block quotes of Markdown, and the
strings of tests. Neither are prompts of presets and of the demo models' training, and code in strings.
"""

import argparse
import re
import subprocess
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
GLOSSARY = PROJECT / "docs" / "glossary.md"
MAX_WORDS = 30

RULES = {
    "term": "a word that the glossary replaces",
    "word": "a word or construction that we do not use",
    "long": f"a sentence of more than {MAX_WORDS} words",
    "fragment": "a possessive without its noun, a sentence that starts with Of, or a comment that starts within a sentence",
    "docstring": "a docstring that starts with neither a verb nor a noun phrase",
    "function": "a function named by a lone preposition, auxiliary verb or similar word",
    "name": "a class or function with a word that the glossary replaces",
}

# A docstring may start with neither of these: with them, its first phrase has no verb and names nothing.
DOCSTRING_STARTS = frozenset(
    "to in for from with by at on as beside besides after before until without within like per than over under between during "
    "if when whether because so and but or while unless since though although both either neither "
    "what which who whom whose where how why whatever whichever "
    "it they he she those them its their there here also only then now likewise not".split()
)
FUNCTION_NAMES = frozenset(
    "of to in for from with by at on as after before until without within beside per into onto over under between "
    "is are was were be been am has have had may might can could shall should will would must do does did "
    "go say so and or not if when what which who whose where how why this that these those it there here now then".split()
)

LITERAL_OR_COMMENT = re.compile(
    r"""(?P<comment>\#[^\n]*)
    |(?P<prefix>\b[rRbBfFuU]{1,2})?(?P<quote>\"{3}|'{3})(?P<block>(?:\\.|(?!(?P=quote)).)*)(?P=quote)
    |(?P<prefix1>\b[rRbBfFuU]{1,2})?(?P<quote1>["'])(?P<line>(?:\\.|(?!(?P=quote1))[^\\\n])*)(?P=quote1)""",
    re.VERBOSE | re.DOTALL,
)
SCRIPT_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`
    |(?<=[=(,:!&|?])\s*/(?![/*])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/""",
    re.VERBOSE | re.DOTALL,
)
STYLE_TOKEN = re.compile(r"(?P<comment>/\*.*?\*/)", re.DOTALL)
DEFINITION = re.compile(r"^[ \t]*(?:async )?(?P<kind>def|class) +(?P<name>\w+)", re.MULTILINE)
HEADER_END = re.compile(r"[ \t]*(?:async def |def |class |\)).*:(?: *#.*)?$")  # the last line of a header, as ruff formats it
BLOCK_LITERAL = re.compile(r"(?s:\"{3}.*?\"{3}|'{3}.*?'{3})")
DIRECTIVE = re.compile(r"^#!|^(?:ty|type|pyright): ?ignore(?:\[[^\]]*\])?|^fmt: \w+|^noqa(?:: ?[A-Z0-9, ]+)?|^ruff: noqa.*")
CODE_IN_STRING = re.compile(
    r"\s*(?:(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|PRAGMA|WITH|BEGIN|ATTACH|VACUUM|DROP) |(?:async )?\([^)]*\) => )"
)
# In TOML files: what a visitor might type, and the instructions of language models.
QUOTED_KEYS = re.compile(r"\b(?:prompts?|negative_prompt|text|(?:en|zh)(?:_picture)?)\"?\s*=\s*[\[{]?\s*$")
QUOTED_LISTS = re.compile(r"^(?:image_)?examples\s*=\s*\[.*?^\]", re.MULTILINE | re.DOTALL)  # example prompts of presets
CODE = "\ufffc"  # replaces a quotation, and counts as one word

QUOTATION = re.compile(r'``.+?``|`[^`]+`|"[^"\n]*(?:\n[^"\n]+)?"|“[^”]*”|«[^»]*»|https?://\S+')
SENTENCE_END = re.compile(
    r"(?<=[.!?])[)\]]*\s+(?=[A-Z0-9\[({*"
    + CODE
    + r"])|(?<=[。！？；])|\n\s*\n|\n\s*(?=(?:[-*•]|\d+\.)\s|[\w`*.]+(?: \([^)\n]*\))?:\s)"
)
LIST_OF_CODE = re.compile(rf"{CODE}(?:(?:,|、| and| or|, and|, or)\s*{CODE})+")  # as one word: it reads like a table
WORD = re.compile(r"[^\W_](?:[\w'’.\-/]*\w)?|" + CODE)
POSSESSIVE = re.compile(
    r"\b(?!(?:it|that|let|what|there|here|who|he|she|one)'s)[\w.]+['’]s"
    r"(?=[,;:.)]|$| (?:of|and|or|to|in|for|from|by|at|with|is|are|has|have|as|if|when|that|which|may|must|can)\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Text:
    """A text of a file. `kind` is "docstring", "comment", "string" or "markdown"; `line` is the line of its first character."""

    path: str
    line: int
    kind: str
    content: str


@dataclass(frozen=True)
class Finding:
    """A text that breaks a rule. `found` is the part that breaks it, with what to write instead if the glossary says so."""

    path: str
    line: int
    rule: str
    found: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.found} | {self.sentence}"


@dataclass(frozen=True)
class Entry:
    """An entry of a column "Do not use". A label, which starts with a capital, is refused only as a whole text."""

    rule: str
    phrase: str
    instead: str

    @property
    def is_label(self) -> bool:
        """Tell the text of a button or field from words of a sentence."""
        return self.phrase[0].isupper()


class Rulebook:
    """The entries of the glossary, joined into few patterns so that the whole project is read in seconds."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.phrases = [entry for entry in entries if not entry.is_label]
        self.labels = {entry.phrase: entry for entry in entries if entry.is_label}
        self.exact = {entry.phrase: entry for entry in self.phrases}
        self.prefixes = [entry for entry in self.phrases if entry.phrase.endswith("*")]
        longest_first = sorted((entry.phrase for entry in self.phrases), key=len, reverse=True)
        self.pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(map(phrase_pattern, longest_first))})(?![\w-])", re.IGNORECASE)

    def find(self, sentence: str) -> Iterator[tuple[str, Entry]]:
        """Yield each phrase of the sentence that has an entry, with the entry."""
        for match in self.pattern.finditer(sentence):
            words = " ".join(match[0].lower().replace("’", "'").split())
            entry = self.exact.get(words) or next(e for e in self.prefixes if words.startswith(e.phrase[:-1]))
            yield match[0], entry

    def find_in_name(self, name: str) -> Iterator[tuple[str, Entry]]:
        """Yield the words of a name, as `lower_case` or `CapWords`, that are terms which the glossary replaces."""
        for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name):
            entry = self.exact.get(word.lower()) or next(
                (e for e in self.prefixes if word.lower().startswith(e.phrase[:-1])), None
            )
            if entry and entry.rule == "term":
                yield word, entry


def phrase_pattern(phrase: str) -> str:
    """Return the pattern of an entry: its words with any white space between them; `*` at its end means any ending."""
    words = r"\s+".join(re.escape(word) for word in phrase.removesuffix("*").split()).replace("'", "['’]")
    return words + (r"\w*" if phrase.endswith("*") else "")


@cache
def rulebook() -> Rulebook:
    """Read the glossary's columns "Do not use"."""
    return Rulebook(list(read_entries(GLOSSARY.read_text("utf-8"))))


def read_entries(glossary: str) -> Iterator[Entry]:
    """Yield the entries of the columns "Do not use": the texts between backticks. The other column of words is the replacement."""
    column, has_terms = None, False
    for line in glossary.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            column = None
        elif "Do not use" in cells:
            column, has_terms = cells.index("Do not use"), "Term" in cells
        elif column is not None and not set(line) <= set("|-: "):
            instead = cells[0 if has_terms else 1].replace("*", "")
            for phrase in re.findall(r"`([^`]+)`", cells[column]):
                yield Entry("term" if has_terms else "word", phrase, instead)


def read_texts(path: str, source: str) -> Iterator[Text]:
    """Yield the texts of a file, by its ending. Raises: ValueError for a kind of file without texts."""
    suffix = path.rpartition(".")[2]
    if suffix == "py":
        return merge_comments(read_python(path, source))
    if suffix == "toml":
        return merge_comments(read_python(path, source, is_toml=True))
    if suffix in ("js", "ts", "css"):
        return merge_comments(read_scripts(path, source, STYLE_TOKEN if suffix == "css" else SCRIPT_TOKEN))
    if suffix == "md":
        return read_markdown(path, source)
    raise ValueError(f"{path} must end in one of {', '.join(SUFFIXES)}")


SUFFIXES = (".py", ".toml", ".js", ".ts", ".css", ".md")


def read_python(path: str, source: str, *, is_toml: bool = False) -> Iterator[Text]:
    """Yield comments, docstrings and strings of at least three words. Adjacent strings are one; values in f-strings are one word."""
    starts = line_starts(source)
    has_quotations = path.startswith("tests/") or path == "training/prompts.py"
    quoted = [found.span() for found in QUOTED_LISTS.finditer(source)] if is_toml else []
    pending, pending_line, pending_end = "", 0, -1
    for match in LITERAL_OR_COMMENT.finditer(source):
        line = bisect_right(starts, match.start())
        if match["comment"] is not None:
            yield Text(path, line, comment_kind(source, match.start(), starts[line - 1]), match["comment"])
            continue
        content = match["block"] if match["block"] is not None else match["line"]
        prefix = (match["prefix"] or match["prefix1"] or "").lower()
        if match["block"] is not None and not is_toml and is_docstring_place(source, match.start()):
            yield Text(path, line, "docstring", content)
            continue
        if (
            has_quotations
            and not is_toml
            or "b" in prefix
            or is_toml
            and QUOTED_KEYS.search(source, max(0, match.start() - 300), match.start())
            or any(start < match.start() < end for start, end in quoted)
        ):
            continue
        if "f" in prefix:
            content = re.sub(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}", CODE, content.replace("{{", "").replace("}}", ""))
        if pending_end >= 0 and not source[pending_end : match.start()].strip() and not is_toml:
            pending += content
        else:
            if pending:
                yield from string_texts(path, pending_line, pending)
            pending, pending_line = content, line
        pending_end = match.end()
    if pending:
        yield from string_texts(path, pending_line, pending)


def comment_kind(source: str, start: int, line_start: int) -> str:
    """Return "comment", or "remark" for a comment behind code, which does not continue on the next line."""
    return "remark" if source[line_start:start].strip() else "comment"


def is_docstring_place(source: str, start: int) -> bool:
    """Return whether the string at `start` is the first statement of a module, or follows the first lines of a function or class."""
    before = source[max(0, start - 300) : start].rstrip()
    return start < 300 and not before or bool(HEADER_END.match(before.rpartition("\n")[2]))


def string_texts(path: str, line: int, content: str) -> Iterator[Text]:
    """Yield a string's text without tags and escapes. Skip code, and strings of fewer than three words that are no labels."""
    if CODE_IN_STRING.match(content):
        return
    plain = re.sub(r"<[^>]*>", lambda tag: "\n" * tag[0].count("\n") + " ", content)
    plain = plain.replace("\\n", " ").replace('\\"', '"').replace("\\'", "'")
    if " " in plain.strip() and re.search(r"[a-z]{2,} [a-z]{2,}|[A-Z][a-z]+ [a-z]+", plain) or plain in rulebook().labels:
        yield Text(path, line, "string", plain)


def read_scripts(path: str, source: str, token: re.Pattern[str]) -> Iterator[Text]:
    """Yield the comments of JavaScript or CSS."""
    starts = line_starts(source)
    for match in token.finditer(source):
        if match["comment"]:
            line = bisect_right(starts, match.start())
            kind = comment_kind(source, match.start(), starts[line - 1])
            content = match["comment"]
            if content.startswith("/*"):
                kind, content = "remark", re.sub(r"\n[ \t]*\*", "\n", content[2:-2].lstrip("*"))
                content = re.sub(r"@(\w+)((?:\s*\{[^\n]*\})?)(?:\s+\[?[\w.]+\]?)?", CODE + ":", content)
            yield Text(path, line, kind, content)


def merge_comments(texts: Iterable[Text]) -> Iterator[Text]:
    """Join comments on lines that follow one another, and take the marks and the tools' directives away."""
    block: list[Text] = []
    for text in texts:
        if block and (text.kind != "comment" or text.line != block[-1].line + 1):
            yield joined(block)
            block = []
        if text.kind == "comment":
            block.append(text)
        elif text.kind == "remark":
            yield joined([text])
        else:
            yield text
    if block:
        yield joined(block)


def joined(comments: Sequence[Text]) -> Text:
    """Return lines of comments as one text."""
    lines = (DIRECTIVE.sub("", re.sub(r"^(?:#:?|//)\s?", "", comment.content)) for comment in comments)
    return Text(comments[0].path, comments[0].line, "comment", "\n".join(lines))


def read_markdown(path: str, source: str) -> Iterator[Text]:
    """Yield paragraphs, list items and table cells, without code blocks, block quotes, front matter and addresses of links."""
    source = re.sub(r"\A---\n.*?\n---\n", blank, source, flags=re.DOTALL)
    source = re.sub(r"^([ ]*)(```|~~~)[^\n]*\n.*?^\1\2[ ]*$", blank, source, flags=re.DOTALL | re.MULTILINE)
    source = re.sub(r"<!--.*?-->", blank, source, flags=re.DOTALL)
    source = re.sub(r"!?\[([^\]]*)\]\([^)\s]*\)", r"\1", source)
    paragraph: list[str] = []
    first = 0
    for number, line in enumerate([*source.splitlines(), ""], 1):
        stripped = line.strip()
        starts_item = re.match(r"(?:[-*+]|\d+\.)\s|#+\s", stripped)
        if paragraph and (not stripped or starts_item or stripped.startswith(("|", ">")) or paragraph[-1].startswith("#")):
            yield Text(path, first, "markdown", "\n".join(paragraph))
            paragraph = []
        if stripped.startswith("|"):
            if not set(stripped) <= set("|-: "):
                yield from (
                    Text(path, number, "markdown", cell.strip()) for cell in stripped.strip("|").split("|") if cell.strip()
                )
        elif stripped and not stripped.startswith(">"):
            first = first if paragraph else number
            paragraph.append(stripped)


def blank(match: re.Match[str]) -> str:
    """Return only the line breaks of what a pattern found, so that the lines below keep their numbers."""
    return "\n" * match[0].count("\n")


def line_starts(source: str) -> list[int]:
    """Return where each line begins."""
    return [0, *(match.end() for match in re.finditer("\n", source))]


def check_text(text: Text) -> Iterator[Finding]:
    """Yield what breaks the rules for words and sentences."""
    content = text.content.strip()
    if text.kind == "docstring" and (start := check_docstring_start(content)):
        yield Finding(text.path, text.line, "docstring", start, shorten(content))
    if label := rulebook().labels.get(content):
        yield Finding(text.path, text.line, label.rule, f"{content} -> {label.instead}", content)
    quoted = QUOTATION.sub(lambda match: CODE + "\n" * match[0].count("\n"), text.content)
    for line, sentence in split_sentences(text.line, quoted):
        found = [(entry.rule, f"{words} -> {entry.instead}") for words, entry in rulebook().find(sentence)]
        found += [("fragment", match[0]) for match in POSSESSIVE.finditer(sentence)]
        if start := re.match(
            r"Of\b" if text.kind != "comment" or line != text.line else r"(?i:of|that|which|whose|than)\b", sentence
        ):
            found.append(("fragment", start[0]))
        if (count := len(WORD.findall(LIST_OF_CODE.sub(CODE, sentence)))) > MAX_WORDS:
            found.append(("long", f"{count} words"))
        for label in re.findall(r"\*([A-Z][^*]+)\*", sentence):
            if entry := rulebook().labels.get(label):
                found.append((entry.rule, f"{label} -> {entry.instead}"))
        for rule, what in found:
            yield Finding(text.path, line, rule, what.replace(CODE, "…"), shorten(sentence))


def split_sentences(line: int, content: str) -> Iterator[tuple[int, str]]:
    """Yield each sentence in one line, with the number of its first line. List items and `Raises:` start sentences too."""
    start = 0
    ends = [*((match.start(), match.end()) for match in SENTENCE_END.finditer(content)), (len(content), len(content))]
    for end, following in ends:
        part = content[start:end]
        if part.strip():
            lead = content.count("\n", 0, start) + (
                len(part) - len(part.lstrip()) and part[: len(part) - len(part.lstrip())].count("\n")
            )
            yield line + lead, " ".join(re.sub(r"^\s*(?:[-+•]|\*(?=\s)|#+|\d+\.(?=\s))\s*", "", part).split())
        start = following


def check_docstring_start(content: str) -> str:
    """Return what is wrong with the first word of a docstring; "" if it may be a verb or the start of a noun phrase."""
    first = content.split(maxsplit=1)[0] if content else ""
    if first.startswith("["):
        return f"{first}: name the array before its shape"
    if re.fullmatch(r"[A-Z]\w+:", first):
        return f"{first} before the sentence that says what it does"
    word = re.match(r"\w*", first)
    if word and word[0].lower() in DOCSTRING_STARTS:
        return word[0]
    return ""


def check_names(path: str, source: str) -> Iterator[Finding]:
    """Yield functions and classes of a Python file whose names break the rules. Code in strings is not checked."""
    code = BLOCK_LITERAL.sub(blank, source)
    starts = line_starts(code)
    for match in DEFINITION.finditer(code):
        line, name = bisect_right(starts, match.start()), match["name"]
        statement = f"{match['kind']} {name}"
        if match["kind"] == "def" and name.strip("_") in FUNCTION_NAMES:
            yield Finding(path, line, "function", name, statement)
        if not path.startswith("tests/"):
            for word, entry in rulebook().find_in_name(name):
                yield Finding(path, line, "name", f"{word} -> {entry.instead}", statement)


def shorten(sentence: str) -> str:
    """Return at most 200 characters of a sentence, in one line, with quotations as an ellipsis."""
    line = " ".join(sentence.replace(CODE, "…").split())
    return line if len(line) <= 200 else line[:199] + "…"


def list_files(paths: Sequence[str] = ()) -> list[str]:
    """Return the files with texts that git knows or would add, below the given paths or all, from the project's folder."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *(paths or ["."])]
    listed = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.split("\n")
    return sorted({name for name in listed if name.endswith(SUFFIXES) and (PROJECT / name).is_file()})


def check_source(path: str, source: str) -> list[Finding]:
    """Return what breaks the rules in a file, in the order of its lines."""
    found = [finding for text in read_texts(path, source) for finding in check_text(text)]
    if path.endswith(".py"):
        found += check_names(path, source)
    return sorted(found, key=lambda finding: finding.line)


def check_files(paths: Sequence[str] = ()) -> list[Finding]:
    """Return what breaks the rules in the files below these paths, or in all."""
    return [finding for name in list_files(paths) for finding in check_source(name, (PROJECT / name).read_text("utf-8"))]


def package_of(path: str) -> str:
    """Return the package of a file for the counts: two folders of the product's code, one of everything else."""
    parts = path.split("/")[:-1]
    return "/".join(parts[: 2 if parts and parts[0] in ("backend", "wan_ui", "docs") else 1]) or "."


def format_counts(findings: Iterable[Finding]) -> str:
    """Return a table of the number of findings by package and rule."""
    counts = Counter((package_of(finding.path), finding.rule) for finding in findings)
    packages = sorted({package for package, _ in counts})
    rows = [["package", *RULES, "total"]]
    for package in [*packages, "total"]:
        numbers = [
            sum(n for (where, what), n in counts.items() if what == rule and package in (where, "total")) for rule in RULES
        ]
        rows.append([package, *map(str, numbers), str(sum(numbers))])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        " ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings and their counts."""
    epilog = "\n".join(f"{rule:10} {meaning}" for rule, meaning in RULES.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.prose", description="Find texts that break the writing rules of docs/glossary.md.", epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files or folders, from the project's folder; default: all")
    parser.add_argument("--rule", choices=RULES, help="print this rule's findings only")
    parser.add_argument("--counts", action="store_true", help="print the counts only")
    options = parser.parse_args(arguments)
    findings = [finding for finding in check_files(options.paths) if options.rule in (None, finding.rule)]
    if not options.counts:
        sys.stdout.writelines(f"{finding}\n" for finding in findings)
    sys.stdout.write(format_counts(findings) + "\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
