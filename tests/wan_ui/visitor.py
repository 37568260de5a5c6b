"""A visitor without a browser, who calls the page's handlers over plain HTTP."""

import json
import secrets
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


class Visitor:
    """A session of a page.

    Handlers have their names in the studio's code, components their element ids. Each request sends `cookie`.
    """

    def __init__(self, url: str, cookie: str = ""):
        self.url, self.session, self.cookie = url.rstrip("/"), secrets.token_hex(6), cookie
        self.config = json.loads(self.get("/config"))
        self._components = {component["id"]: component["props"] for component in self.config["components"]}

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(
            urllib.request.Request(self.url + path, headers={"cookie": self.cookie}), timeout=30
        ) as answer:
            return answer.read()

    def post(self, path: str, body: Any, content_type: str = "application/json") -> tuple[int, bytes]:
        """Send a request and return the status and the body of the answer."""
        request = urllib.request.Request(self.url + path, body, {"content-type": content_type, "cookie": self.cookie})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def upload(self, file: Path) -> str:
        """Upload a file and return its path on the server."""
        head = f'--edge\r\ncontent-disposition: form-data; name="files"; filename="{file.name}"\r\n\r\n'
        body = head.encode() + file.read_bytes() + b"\r\n--edge--\r\n"
        return json.loads(self.post("/gradio_api/upload", body, "multipart/form-data; boundary=edge")[1])[0]

    def call(self, handler: str, given: dict[str, Any], event_data: Any = None, query: str = "") -> Any:
        """Call a handler. Return its outputs as a list, or the error. Inputs that are not given have the values of a fresh page.

        `query` is the query string of the page's address.
        """
        function = next(found for found in self.config["dependencies"] if found["api_name"] == handler)
        props = [self._components[component] for component in function["inputs"]]
        data = [given.get(each.get("elem_id"), each.get("value")) for each in props]
        message = {"data": data, "fn_index": function["id"], "session_hash": self.session, "event_data": event_data}
        answer = json.loads(self.post(f"/gradio_api/run/predict{query}", json.dumps(message).encode())[1])
        return answer.get("data", answer)
