"""The command `keys`: makes a program's key, lists the keys, or revokes one."""

import argparse
import json
import sys
from datetime import datetime

from backend.engine.keys import Key, Keys
from backend.settings import from_environment


def manage_keys(arguments: argparse.Namespace) -> None:
    """Does what `arguments.action` says. Raises: RequestError, DataFolderError."""
    keys = Keys(from_environment(arguments.data_dir).data_dir)
    if arguments.action == "create":
        _create_key(keys, arguments)
    elif arguments.action == "list":
        _print_keys(keys.list_keys(), arguments.json)
    else:
        keys.revoke(arguments.name)
        sys.stderr.write(
            f"The key {arguments.name} opens nothing any more; what was made with it is still the operator's to see\n"
        )


def _create_key(keys: Keys, arguments: argparse.Namespace) -> None:
    """The key alone on standard output, so that a script can take it from there."""
    key, secret = keys.create(arguments.name, arguments.limit, arguments.notify)
    if arguments.json:
        sys.stdout.write(json.dumps({"name": key.name, "key": secret, "limit": key.most_waiting}) + "\n")
    else:
        sys.stdout.write(f"{secret}\n")
    sys.stderr.write("Keep this key: it is not shown again. Programs send it as `Authorization: Bearer KEY`\n")


def _print_keys(keys: list[Key], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps([_key_facts(key) for key in keys], indent=2) + "\n")
        return
    widest = max((len(key.name) for key in keys), default=0)
    for key in keys:
        told = ", with word of each end" if key.notify else ""
        used = f"last used {_format_time(key.used)}" if key.used else "never used"
        sys.stdout.write(
            f"{key.name:{widest}}  made {_format_time(key.created)}, {used}, {key.most_waiting} videos in line{told}\n"
        )


def _key_facts(key: Key) -> dict:
    return {
        "name": key.name,
        "created": key.created,
        "last_used": key.used,
        "limit": key.most_waiting,
        "notifies": bool(key.notify),
    }


def _format_time(seconds: float) -> str:
    """A time in this machine's own zone, to the minute."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
