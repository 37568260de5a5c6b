"""The command `member`: run a process of a multihost worker on each host of a slice except the first."""

import argparse
import logging

from backend.cli.arguments import read_hosts_secret
from backend.errors import RequestError
from backend.multihost.member import Member
from backend.settings import from_environment


def member(arguments: argparse.Namespace) -> None:
    """Connect to the first host, and connect again whenever the connection ends. Raises: RequestError, MemberRefused."""
    index, count = arguments.process_id, arguments.num_processes
    if not 0 < index < count:
        rule = f"must be from 1 to {count - 1} with --num-processes {count}"
        raise RequestError(f"process-id={index}", rule, "the first host, which runs `serve --hosts`, is 0")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    address, port = arguments.coordinator
    settings = from_environment(arguments.data_dir)
    Member(index=index, count=count, address=address, port=port, secret=read_hosts_secret(), settings=settings).serve()
