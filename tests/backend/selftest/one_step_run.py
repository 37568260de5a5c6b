"""Print the result of `doctor` for the demo model's step on a described v6e chip, and on the same chip with a megabyte of
memory. The step compiles but cannot run there. This is a separate process because libtpu reads its settings before jax is
imported.
"""

import dataclasses
import sys

from backend.schemas.request import example_request
from backend.schemas.settings import find_preset
from backend.schemas.worker import AXES
from backend.selftest.one_step import KeepingInspector, time_step
from backend.tpu_analysis.report import STEP, describe_slice


def main() -> None:
    for hbm_bytes in (None, 2**20):
        inspector = KeepingInspector(lambda text: None, only=STEP)
        described = describe_slice(example_request(find_preset("wan-tiny")), "v6e:1x1", dict.fromkeys(AXES), inspector)
        chip = described.chip if hbm_bytes is None else dataclasses.replace(described.chip, hbm_bytes=hbm_bytes)
        inspector.slice = dataclasses.replace(described, chip=chip)
        check = time_step(described.model, described.request, inspector, chip)
        sys.stdout.write(f"{inspector.costs[STEP]['predicted_seconds']} {check}\n".replace("\n ", " ").rstrip() + "\n")


if __name__ == "__main__":
    main()
