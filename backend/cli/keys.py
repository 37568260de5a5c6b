"""The command `keys`: create, list or revoke API keys, which programs send with their requests."""

import argparse
import json
import sys
from datetime import datetime

from backend.engine.keys import Keys
from backend.settings import from_environment

_TIME = "%Y-%m-%d %H:%M"


def manage_keys(arguments: argparse.Namespace) -> None:
    """Run the action in `arguments.action`. Raises: RequestError, DataFolderError."""
    keys = Keys(from_environment(arguments.data_dir).data_dir)
    if arguments.action == "create":
        key, secret = keys.create(arguments.name, arguments.limit, arguments.notify)
        # Standard output contains only the key, so that scripts can read it.
        facts = {"name": key.name, "key": secret, "limit": key.most_waiting, "webhook_secret": key.webhook_secret}
        sys.stdout.write(f"{json.dumps(facts) if arguments.json else secret}\n")
        sys.stderr.write("Keep this key: it is not shown again. Programs send it as `Authorization: Bearer KEY`\n")
        sys.stderr.write(f"The secret that signs the reports to its webhooks: {key.webhook_secret}\n")
    elif arguments.action == "revoke":
        keys.revoke(arguments.name)
        fate = "is no longer valid. The operator still sees the videos that were generated with it."
        sys.stderr.write(f"The key {arguments.name} {fate}\n")
    elif arguments.json:
        listed = []
        for key in keys.list_keys():
            times = {"name": key.name, "created": key.created, "last_used": key.used}
            listed.append({**times, "limit": key.most_waiting, "notifies": bool(key.notify)})
        sys.stdout.write(json.dumps(listed, indent=2) + "\n")
    else:
        listed = keys.list_keys()
        widest = max((len(key.name) for key in listed), default=0)
        for key in listed:
            notified = ", with notifications" if key.notify else ""
            created = datetime.fromtimestamp(key.created).strftime(_TIME)
            used = f"last used {datetime.fromtimestamp(key.used).strftime(_TIME)}" if key.used else "never used"
            limit = f"at most {key.most_waiting} queued videos{notified}"
            sys.stdout.write(f"{key.name:{widest}}  created {created}, {used}, {limit}\n")
