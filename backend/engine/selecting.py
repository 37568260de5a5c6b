"""Convert a selection of videos to SQL over the store's table of jobs."""

from backend.engine.job import LENGTHS, SIZES, Selection

ORDERS = {
    "newest": "number DESC",
    "oldest": "number ASC",
    "longest": "seconds DESC, number DESC",
    "largest": "json_extract(summary, '$.width') * json_extract(summary, '$.height') DESC, number DESC",
}
_NOT_ARCHIVED = "(project = '' OR project NOT IN (SELECT id FROM projects WHERE archived IS NOT NULL))"
_SIDE = "MIN(json_extract(summary, '$.width'), json_extract(summary, '$.height'))"
_SHOTS = "CASE WHEN json_extract(summary, '$.has_shots') THEN json_extract(request, '$.shots') ELSE '' END"
_PROMPTS = f"lower(json_extract(summary, '$.prompt') || ' ' || {_SHOTS})"


def where_clause(selection: Selection) -> tuple[str, tuple]:
    """Return the selection as an SQL condition with its values."""
    parts = ["has_video = 1", f"deleted IS {'NOT ' if selection.is_deleted else ''}NULL"]
    values: list[str | float] = []

    def add(part: str, *given: str | float) -> None:
        parts.append(part)
        values.extend(given)

    if selection.owner is not None:
        add("owner = ?", selection.owner)
    if selection.project is not None:
        add("project = ?", selection.project)
    elif not selection.is_deleted:
        parts.append(_NOT_ARCHIVED)
    if selection.is_starred:
        parts.append("starred = 1")
    if selection.has_characters:
        parts.append("json_extract(summary, '$.has_figures')")
    if selection.presets:
        add(f"json_extract(summary, '$.preset') IN ({', '.join('?' * len(selection.presets))})", *selection.presets)
    if selection.length in LENGTHS:
        add("seconds > ? AND seconds <= ?", *LENGTHS[selection.length])
    if selection.size in SIZES:
        add(f"{_SIDE} > ? AND {_SIDE} <= ?", *SIZES[selection.size])
    for word in selection.words:
        if word.startswith("#") and len(word) > 1:
            add("EXISTS (SELECT 1 FROM json_each(tags) WHERE lower(value) = lower(?))", word[1:])
        else:
            add(f"instr({_PROMPTS}, lower(?)) > 0", word)
    return " AND ".join(parts), tuple(values)


def order_clause(selection: Selection) -> str:
    """Return the SQL order of the selection. Unknown orders mean newest first."""
    return ORDERS.get(selection.order, ORDERS["newest"])
