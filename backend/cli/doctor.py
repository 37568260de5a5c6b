"""The command `doctor`: check the machine, its devices and the model, and print each finding with its fix.

jax runs in a separate process (`backend.cli.doctor_run`), because it reserves the chips and may crash.
"""

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.catalog.compatibility import denoising_seconds, find_faster_preset, fitting_presets, is_estimate, recommend_preset
from backend.cli.machine_checks import machine_checks, weights_check
from backend.cli.module_process import EndedProcess, run_in_process
from backend.errors import OutputError, one_line
from backend.schemas.check import Check, worst_state
from backend.schemas.settings import find_preset
from backend.schemas.worker import Device
from backend.settings import from_environment, hub_address
from backend.workers.unused_accelerator import Surroundings, explain_error, explain_unused
from presets import Preset, list_presets

# The separate process is killed after this time without a message. One program of a 14B model compiles in 30 to 170 s
# (docs/performance.md). If the other hosts of a slice do not start, jax waits forever.
SILENT_SECONDS = 300.0
VERDICTS = {
    "ok": "All checks passed.",
    "warning": "The studio runs here. See the warnings.",
    "fault": "The studio has faults. See above.",
}


def doctor(arguments: argparse.Namespace) -> bool:
    """Print each finding, and write the findings to --json FILE if given. Return whether no fault was found.

    Raises: RequestError, OutputError.
    """
    preset = list_presets()[0] if arguments.preset is None else find_preset(arguments.preset)
    target = None if arguments.json is None else Path(arguments.json)
    if target is not None:
        try:
            target.touch()
        except OSError as error:
            raise OutputError(f"json={str(target)!r}", f"must be writable ({error.strerror})", "check the path") from None
    started, here = time.monotonic(), Surroundings.of_this_process()
    findings = Findings(here=here)
    for check in machine_checks(from_environment(arguments.data_dir), here, preset, (hub_address(), _hub_cache())):
        findings.add(check)
    words = ["--preset", preset.name, *(["--quick"] if arguments.quick else [])]
    ended = run_in_process("backend.cli.doctor_run", words, None, findings._receive, SILENT_SECONDS)
    if findings.refusal or not findings.devices:
        findings.add(refused_devices_check(here, findings.refusal or ended.errors, ended))
    elif ended.report is None:
        findings.add(interrupted_check(findings.current_work, ended, SILENT_SECONDS))
    verdict = worst_state(findings.checks)
    sys.stdout.write(f"{VERDICTS[verdict]}\n")
    if target is not None:
        facts = {"preset": preset.name, "verdict": verdict, "seconds": round(time.monotonic() - started, 1)}
        target.write_text(json.dumps(facts | findings.to_json(), indent=2) + "\n", "utf-8")
    return verdict != "fault"


@dataclass
class Findings:
    """The results of the checks so far. Each result is printed when it is added."""

    here: Surroundings
    checks: list[Check] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    refusal: str = ""
    recommended: str = ""
    current_work: str = "starting"

    def add(self, check: Check) -> None:
        self.checks.append(check)
        sys.stdout.write(f"{check}\n")
        sys.stdout.flush()

    def to_json(self) -> dict[str, object]:
        """Return the machine, its devices and the checks as JSON values."""
        return {
            "machine": {
                "python": sys.version.split()[0],
                "system": " ".join(os.uname()[i] for i in (0, 2, 4)),
                "cores": os.cpu_count(),
                "accelerators": [str(one) for one in self.here.accelerators],
                "platforms": list(self.here.platforms),
                "versions": dict(self.here.versions),
            },
            "devices": [{"name": one.name, "kind": one.kind, "bytes_limit": one.bytes_limit} for one in self.devices],
            "refusal": self.refusal,
            "recommended": self.recommended,
            "checks": [{"name": one.name, "state": one.state, "found": one.found, "mend": one.fix} for one in self.checks],
        }

    def _receive(self, message: dict[str, Any]) -> None:
        """Add a finding of `backend.cli.doctor_run`, which runs in a separate process."""
        if "progress" in message:
            self.current_work = message["progress"]
            if sys.stderr.isatty():
                sys.stderr.write(f"{self.current_work} ...\n")
        if "refusal" in message:
            self.refusal = message["refusal"]
        if "devices" in message:
            self.devices = [Device(**device) for device in message["devices"]]
            self.add(devices_check(self.here, self.devices))
            is_online = all(check.state == "ok" for check in self.checks if check.name == "Hub")
            preset, check = recommended_check(self.devices, _hub_cache(), is_online=is_online)
            self.recommended = preset.name
            self.add(check)
        if "check" in message:
            self.add(Check(**message["check"]))


def devices_check(here: Surroundings, devices: list[Device]) -> Check:
    """Compare the devices that jax uses with the accelerators of this machine."""
    kinds = [device.kind for device in devices]
    counted = ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
    room = devices[0].bytes_limit
    found = f"jax uses {counted}" + (f", {room / 2**30:.1f} GiB each" if room else "")
    notice = explain_unused(here, devices)
    if notice is None:
        return Check(name="devices", state="ok", found=found)
    state = "fault" if notice.is_fault else "ok"
    return Check(name="devices", state=state, found=f"{found}. {notice.found}", fix=notice.fix)


def recommended_check(devices: list[Device], cache: Path, *, is_online: bool = True) -> tuple[Preset, Check]:
    """Return the best preset for the devices, and a check that describes it.

    The weights of the preset must be on this machine, or the Hub reachable and its cache large enough. If this excludes a better
    preset, the check is a warning.
    """

    def can_use(preset: Preset) -> bool:
        state = weights_check(preset, cache).state
        return state == "ok" or (is_online and state == "warning")

    fitting, (preset, need) = fitting_presets(devices, can_use), recommend_preset(devices, can_use)
    best, best_need = recommend_preset(devices)
    found, state, fix = f"{preset.name}, the demo model", "ok", ""
    if need is not None:
        weights = weights_check(preset, cache)
        source = f"(estimated from {need.slice})" if is_estimate(need, devices) else f"on {need.slice}"
        seconds = _format_seconds(denoising_seconds(preset, need))
        found = f"{preset.name}, predicted to need {need.gib:g} GiB of each device and {seconds} of denoising per video {source}"
        found, fix = f"{found}; {weights.found}", weights.fix
        if faster := find_faster_preset(preset, fitting):
            found += f"; faster: {faster[0].name}, {_format_seconds(denoising_seconds(*faster))} of denoising"
    elif best_need is None:
        found += ": no other preset has predicted figures for these devices"
    if best != preset:
        weights, state = weights_check(best, cache), "warning"
        found += f"; {best.name} would fit these devices, but {weights.found}{'' if is_online else '; the Hub is not reached'}"
        fix = weights.fix
    return preset, Check(name="best preset", state=state, found=found, fix=fix)


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.1f} min"


def refused_devices_check(here: Surroundings, error: str, ended: EndedProcess) -> Check:
    """Explain why jax found no devices. An unknown error is shown as it is."""
    notice = explain_error(here, one_line(error))
    if notice is not None:
        return Check(name="devices", state="fault", found=notice.found, fix=notice.fix)
    if ended.was_silent:
        fix = "on a slice of several hosts, start the same command on every host; otherwise restart the machine"
        return Check(name="devices", state="fault", found="jax waits for devices that do not respond", fix=fix)
    found = f"jax finds no devices: {one_line(error)[-400:]}"
    return Check(name="devices", state="fault", found=found, fix="JAX_PLATFORMS=cpu uses the processor instead")


def interrupted_check(current_work: str, ended: EndedProcess, silent_seconds: float) -> Check:
    how = f"sent no message for {silent_seconds:.0f} s" if ended.was_silent else f"ended with {ended.code}: {ended.last_error}"
    fix = "attach the JSON of `python app.py doctor --json FILE` to a bug report"
    return Check(name="trial", state="fault", found=f"while {current_work}, the process {how}", fix=fix)


def _hub_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)
