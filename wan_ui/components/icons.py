"""Icons of buttons, as SVG in the colour of the text around them."""

_PATHS = {
    "up": '<path d="M10 15V5M5.5 9.5 10 5l4.5 4.5"/>',
    "down": '<path d="M10 5v10M5.5 10.5 10 15l4.5-4.5"/>',
    "edit": '<path d="M4 16l.8-3.4L13 4.4a1.6 1.6 0 0 1 2.3 0l.3.3a1.6 1.6 0 0 1 0 2.3l-8.2 8.2z"/>',
    "copy": '<rect x="7" y="7" width="9" height="9" rx="2"/><path d="M13 4.5H6A1.5 1.5 0 0 0 4.5 6v7"/>',
    "cross": '<path d="M5.5 5.5l9 9M14.5 5.5l-9 9"/>',
    "stop": '<rect x="5.5" y="5.5" width="9" height="9" rx="1.5"/>',
    "star": '<path d="M10 3.6l2 4.1 4.5.600-3.3 3.1.800 4.5-4-2.2-4 2.2.800-4.5L3.5 8.3 8 7.7z"/>',
    "archive": '<rect x="3.5" y="4" width="13" height="3.5" rx="1"/><path d="M4.8 7.5V15.5h10.4V7.5M8 10.5h4"/>',
    "bin": '<path d="M4.5 6h11M8 6V4.3h4V6M6 6l.700 9.7h6.6L14 6"/>',
    "compare": '<rect x="3.5" y="5" width="5.5" height="10" rx="1.2"/><rect x="11" y="5" width="5.5" height="10" rx="1.2"/>',
    "download": '<path d="M10 4v8.5M6 9l4 4 4-4M4.5 16h11"/>',
    "again": '<path d="M15.5 10a5.5 5.5 0 1 1-1.7-4M15.5 3.5V7H12"/>',
    "dice": '<rect x="4" y="4" width="12" height="12" rx="2.5"/>'
            '<path d="M7.5 7.5h.01M12.5 7.5h.01M10 10h.01M7.5 12.5h.01M12.5 12.5h.01"/>',
    "quality": '<path d="M4 15.5 8 8l3 4.5 2-3 3 6zM13.5 5.5h.01"/>',
    "go_on": '<path d="M4 10h11M10.5 5.5 15 10l-4.5 4.5"/>',
    "back": '<path d="M14.5 5v10L7 10zM5.5 5v10"/>',
    "forward": '<path d="M5.5 5v10L13 10zM14.5 5v10"/>',
    "play": '<path d="M6.5 4.5v11l9-5.5z"/>',
    "pause": '<path d="M7 5v10M13 5v10"/>',
    "loop": '<path d="M4 10V8.5A2.5 2.5 0 0 1 6.5 6H15M12.5 3.5 15 6l-2.5 2.5"/>'
            '<path d="M16 10v1.5a2.5 2.5 0 0 1-2.5 2.5H5M7.5 16.5 5 14l2.5-2.5"/>',
    "sound": '<path d="M4 8v4h2.5L10 15V5L6.500 8zM12.5 7.500a3.500 3.500 0 0 1 0 5M14.500 5.500a6.500 6.500 0 0 1 0 9"/>',
    "muted": '<path d="M4 8v4h2.5L10 15V5L6.500 8zM13 8l4 4M17 8l-4 4"/>',
    "use": '<path d="M4 6h7M15 6h1M4 14h1M9 14h7"/><circle cx="13" cy="6" r="1.8"/><circle cx="7" cy="14" r="1.8"/>',
    "show": '<rect x="3.5" y="4.5" width="13" height="9" rx="1.5"/><path d="M7.5 16.5h5"/>',
    "pin": '<path d="M7 4h6M8 4v4.5L5.5 12h9L12 8.5V4M10 12v4.5"/>',
    "list": '<path d="M4 5.5h12M4 10h12M4 14.5h7"/>',
    "question": '<path d="M7.5 7.8a2.5 2.5 0 1 1 3.7 2.2c-.800.4-1.2.900-1.2 1.7M10 14.5h.01"/>',
    "link": '<path d="M8.5 11.5l3-3M9 6.5l1.5-1.5a3 3 0 0 1 4.3 4.3L13 11M11 13.5 9.5 15a3 3 0 0 1-4.3-4.3L7 9"/>',
    "way_follow": '<path d="M3.5 13c2.5-6 4.5-6 6.5-3s4 3 6.5-3"/>',
    "way_widen": '<rect x="7" y="6.5" width="6" height="7" rx="1"/><path d="M4.5 8 2.5 10l2 2M15.5 8l2 2-2 2"/>',
    "way_extend": '<path d="M3.5 5.5h6v9h-6zM12 10h5M14.5 7.5 17 10l-2.5 2.5"/>',
    "way_sound": '<path d="M4 8v4h2.5L10 15V5L6.500 8zM14 7v6M11 10h6"/>',
    "way_animate": '<circle cx="10" cy="5.500" r="1.800"/><path d="M10 7.500v5M6 8.500l4 1.500 4-2M7 17l3-4.500 3 4.500"/>',
    "way_keys": '<path d="M3.5 10h13M6 7.5 8.5 10 6 12.5 3.5 10zM14 7.5l2.5 2.5-2.5 2.5-2.5-2.5z"/>',
    "brush": '<path d="M9.5 10.5l6.3-6.3"/>'
            '<path d="M9 11a2.3 2.3 0 0 0-3.4 1.8c0 1.5-1.1 2-2.1 2.2 2.5 1.3 6.5.6 6.5-2.5z"/>',
    "eraser": '<path d="M8.5 15.5h7M5 11.5 11.5 5l4 4-6.5 6.5H7.5L5 13a1 1 0 0 1 0-1.5zM8.5 8l4 4"/>',
    "undo": '<path d="M7 4.5 3.8 7.7 7 10.9M4 7.7h7.5a4 4 0 0 1 0 8H8"/>',
}  # fmt: skip


_ALSO = {"way_anew": "again", "way_paint": "brush", "clear": "bin"}


def icon(name: str) -> str:
    return f'<svg class="icon" viewBox="0 0 20 20" aria-hidden="true">{_PATHS[_ALSO.get(name, name)]}</svg>'
