"""The access rule of each address. Views add rules for their own addresses. Addresses without a rule are refused.

- `public`: all callers.
- `login`: visitors who have logged in (all visitors if no password is set), and programs with a key.
- `visitor`: all callers pass this check. The route itself checks the cookie, or the ticket in the address (`Access.ticket`), and
  serves only callers who may see the job or project in the address.
- `owner`: programs with a key, and visitors who meet the rule `login` and have a visitor cookie. Both see only their own videos.
- `program`: if a password is set, only programs with a key. Otherwise all callers.
- `operator`: if a password is set, only programs with the operator's key. Otherwise all callers.
- `refused`: no caller. Gradio defines the address, and the studio does not need it.
"""

from collections.abc import Mapping
from typing import Literal

from starlette.routing import compile_path

Rule = Literal["public", "login", "visitor", "owner", "program", "operator", "refused"]
Rules = Mapping[str, Rule]

API = "/gradio_api"
UPLOAD = f"{API}/upload"
LOGIN = "/login"
LOGOUT = "/logout"
V1 = "/v1"  # the start of all addresses in OpenAI's format
VIDEOS = f"{V1}/videos"
_STREAM = f"{API}/stream/{{session_hash}}/{{run}}/{{component_id}}"
_REFUSED = (
    *("/monitoring", "/monitoring/summary", "/monitoring/{key}", "/pwa_icon", "/pwa_icon/{size}", f"{API}/api/{{api_name}}"),
    *(f"{API}/call/v2/{{api_name}}", f"{API}/call/v2/{{api_name}}/{{event_id}}", f"{API}/component_server", f"{API}/deep_link"),
    *(f"{API}/custom_component/{{id}}/{{environment}}/{{type}}/{{file_name}}", f"{API}/dev/reload", f"{API}/file/{{path:path}}"),
    *(f"{API}/openapi.json", f"{API}/process_recording", f"{API}/proxy={{url_path:path}}", f"{API}/runs", f"{API}/token"),
    *(f"{API}/stream/{{event_id}}", f"{API}/stream/{{event_id}}/close", f"{API}/undo-vibe-edit", f"{API}/vibe-code"),
    *(f"{_STREAM}/playlist.m3u8", f"{_STREAM}/playlist-file", f"{_STREAM}/{{segment_id}}.{{ext}}"),
    *(f"{API}/vibe-edit", f"{API}/vibe-starter-queries"),
)
ROUTES: Rules = {
    "/": "public",  # without a login, the response is only the login form
    LOGIN: "public",
    LOGOUT: "public",
    "/healthz": "public",
    "/favicon.ico": "public",
    "/manifest.json": "public",
    "/robots.txt": "public",
    "/theme.css": "public",
    "/studio/scripts/{version}.js": "public",
    "/static/{path:path}": "public",
    "/assets/{name}.css": "public",
    "/assets/{path:path}": "public",
    "/svelte/{path:path}": "public",
    f"{API}/theme.css": "public",
    f"{API}/startup-events": "public",
    f"{API}/login_check": "public",  # returns whether the caller is logged in
    "/config": "login",
    "/studio/changes": "login",
    "/studio/figures": "login",
    "/studio/tasks": "login",
    "/studio/tasks/{task_id}/stop": "visitor",
    UPLOAD: "login",
    f"{API}/upload_progress": "login",
    f"{API}/info": "login",
    f"{API}/user": "login",
    f"{API}/app_id": "login",
    f"{API}/heartbeat/{{session_hash}}": "login",
    f"{API}/run/{{api_name}}": "login",
    f"{API}/call/{{api_name}}": "login",
    f"{API}/call/{{api_name}}/{{event_id}}": "login",
    f"{API}/queue/join": "login",
    f"{API}/queue/data": "login",
    f"{API}/queue/status": "login",
    f"{API}/cancel": "login",
    f"{API}/reset": "login",
    f"{API}/file={{path_or_url:path}}": "login",
    "/studio/media/{job_id}/{name:path}": "visitor",
    "/studio/video/{job_id}/{ticket}/video.mp4": "visitor",
    "/studio/sound/{job_id}.wav": "visitor",
    "/studio/export/{job_id}/{form}": "visitor",
    "/studio/project/{project_id}.zip": "visitor",
    "/studio/shots/{job_id}": "visitor",
    "/metrics": "operator",
    "/mcp": "program",
    VIDEOS: "owner",
    f"{VIDEOS}/{{video_id}}": "owner",
    f"{VIDEOS}/{{video_id}}/content": "owner",
    f"{VIDEOS}/{{video_id}}/events": "owner",
    f"{VIDEOS}/{{video_id}}/cancel": "owner",
    f"{V1}/models": "owner",
    f"{V1}/models/{{model}}": "owner",
    **dict.fromkeys(_REFUSED, "refused"),
}


class RuleTable:
    def __init__(self, rules: Rules = ROUTES) -> None:
        # If a path matches a refused pattern and an allowed pattern, the refused pattern must be found first.
        refused_first = sorted(rules.items(), key=lambda entry: entry[1] != "refused")
        self._rules = [(compile_path(template)[0], rule) for template, rule in refused_first]

    def find_rule(self, path: str) -> Rule:
        """Return the rule of a path. Return "refused" if no rule matches. A slash at the end is ignored."""
        path = path.rstrip("/") or "/"
        return next((rule for pattern, rule in self._rules if pattern.fullmatch(path)), "refused")
