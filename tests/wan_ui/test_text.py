import re
from dataclasses import fields
from pathlib import Path

import wan_ui
from wan_ui.text import Texts


def test_every_text_is_used():
    code = "".join(path.read_text() for path in Path(wan_ui.__file__).parent.glob("*.py") if path.name != "text.py")
    states = {field.name for field in fields(Texts) if field.name.startswith("worker_")}  # looked up by the state
    unused = [field.name for field in fields(Texts) if not re.search(rf"(texts|labels|ENGLISH)\.{field.name}\b", code)]
    assert set(unused) == states
