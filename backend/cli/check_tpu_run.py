"""Compile the programs for `check-tpu`. `app.py check-tpu` starts this module in a separate process.

Writes JSON lines to standard output: {"progress": TEXT} and last {"report": OBJECT}.
"""

import argparse
import dataclasses

from backend.catalog.measured_ratios import add_measured_ratios
from backend.child_process import write_message
from backend.cli.check_tpu import SPEED_SETTINGS
from backend.engine.instant import draft_request
from backend.imports import hide_unused_libraries
from backend.schemas.request import example_request
from backend.schemas.settings import find_preset
from backend.schemas.worker import AXES
from backend.settings import from_environment
from backend.tpu_analysis.live_rate import predict_live_rate
from backend.tpu_analysis.report import Inspector, describe_slice, remedies, report
from backend.tpu_analysis.unread import include_unread_bytes


def main() -> None:
    hide_unused_libraries()
    about = "`app.py check-tpu` starts this module. Do not start it by hand."
    parser = argparse.ArgumentParser(prog="backend.cli.check_tpu_run", description=about)
    parser.add_argument("--preset", required=True)
    parser.add_argument("--topology", required=True)
    for axis in AXES:
        parser.add_argument(f"--{axis}", type=int)
    parser.add_argument("--progressive", type=int, help="the level of progressive resolution")
    parser.add_argument("--only", help="compile this program alone, by its key, such as denoise_step")
    parser.add_argument("--mag-cache", type=float)
    parser.add_argument("--sparse", type=float)
    parser.add_argument("--quantize")
    parser.add_argument("--instant", action="store_true")
    arguments = parser.parse_args()
    mesh = {axis: getattr(arguments, axis) for axis in AXES}
    settings = {name: getattr(arguments, name) for name in SPEED_SETTINGS}
    request = example_request(find_preset(arguments.preset), **settings)
    request = add_measured_ratios(request, from_environment().magnitudes_dir)
    if arguments.instant:
        request = draft_request(request, request.resolved_preset)

    def report_progress(text: str) -> None:
        write_message({"progress": text})

    inspector = Inspector(report_progress, arguments.only)
    described = describe_slice(request, arguments.topology, mesh, inspector)
    result = include_unread_bytes(report(described, inspector), described.model, request)
    result |= predict_live_rate(described.model, request, result["components"])
    if not result["fits"]:
        result["would_fit"] = [
            dataclasses.asdict(one) for one in remedies(result, request, arguments.topology, mesh, report_progress)
        ]
    write_message({"report": result | {"topology": arguments.topology}})


if __name__ == "__main__":
    main()
