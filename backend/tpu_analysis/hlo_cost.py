"""Predicted seconds of one compiled TPU program, read from its scheduled HLO text.

- XLA's fusions and copies have the compiler's own `estimated_cycles`. Instructions in a loop count once for each iteration.
- A Pallas kernel has no estimate. Its cycles come from the argument `kernel_cycles` (see `kernels_cost`).
- A collective's time is the number of bytes that a chip receives, divided by the speed of its links. Work that is scheduled
  between the collective's start and end hides its time.

All results are predictions. docs/performance.md compares them with a published run.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator

from backend.chips import Chip

KINDS = ("attention", "matmul", "element-wise", "layout", "collectives")
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f32": 4, "s32": 4, "u32": 4, "s64": 8, "u64": 8,
         "f8e4m3fn": 1}  # fmt: skip
COLLECTIVES = ("all-gather", "all-to-all", "all-reduce", "reduce-scatter", "collective-permute")
MOVING = {"parameter", "constant", "copy", "bitcast", "transpose", "reshape", "slice", "dynamic-slice", "concatenate", "pad",
          "tuple", "get-tuple-element", "broadcast", "dynamic-update-slice", "iota", "convert"}  # fmt: skip

_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r"(?:^|\s)([a-z][a-z0-9\-]*)\(")
_CALLED = re.compile(r"\b(calls|body|condition|true_computation|false_computation|called_computations)=\{?%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_ARRAY = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+fn)?)\[([\d,]*)\]")
_GROUPS = re.compile(r"replica_groups=(?:\{\{([\d,]+)\}|\[(\d+),(\d+)\]|mesh\[[^\]]*\] ?\{[^}]*\})")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\] ?\{([^}]*)\}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instruction:
    """One line of a computation. `called` maps attributes that name another computation, such as "body", to that name."""

    name: str
    opcode: str
    shape: str
    text: str
    called: dict[str, str]

    @property
    def cycles(self) -> int:
        match = _CYCLES.search(self.text)
        return int(match.group(1)) if match else 0


@dataclasses.dataclass(kw_only=True)
class Cost:
    """Seconds by kind. `hidden` is the time of collectives that other work hides. It is not part of the total."""

    seconds: dict[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    hidden: float = 0.0

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def add(self, other: Cost, times: float = 1.0) -> None:
        for kind, value in other.seconds.items():
            self.seconds[kind] += times * value
        self.hidden += times * other.hidden


def predict(hlo: str, chip: Chip, kernel_cycles: Callable[[Instruction], float]) -> Cost:
    """Predict the cost of an optimised, scheduled HLO module. `kernel_cycles` returns a Pallas call's cycles on one device."""
    computations, entry = parse(hlo)
    return _CostAdder(computations, chip, kernel_cycles).cost(entry)


def parse(hlo: str) -> tuple[dict[str, list[Instruction]], str]:
    """Return all computations by name, with their instructions in schedule order, and the name of the entry computation."""
    computations: dict[str, list[Instruction]] = {}
    entry, current = "", []
    for line in hlo.splitlines():
        if line and not line[0].isspace() and line.rstrip().endswith("{") and " -> " in line:
            name = line.removeprefix("ENTRY ").split()[0].lstrip("%")
            entry = name if line.startswith("ENTRY ") else entry
            current = computations.setdefault(name, [])
        elif (match := _INSTRUCTION.match(line)) is not None:
            current.append(_instruction(match.group(1), match.group(2)))
    return computations, entry


def _instruction(name: str, text: str) -> Instruction:
    head = re.sub(r"\{[^{}]*\}", "", text.partition(", metadata=")[0])
    opcode = _OPCODE.search(" " + head)
    shape = head[: opcode.start()] if opcode else head
    attributes = text.partition("backend_config=")[0]
    called = dict(_CALLED.findall(attributes))
    if branches := _BRANCHES.search(attributes):
        called |= {f"branch {index}": name.strip().lstrip("%") for index, name in enumerate(branches.group(1).split(","))}
    return Instruction(name=name, opcode=opcode.group(1) if opcode else "", shape=shape, text=text, called=called)


def _kind_of_kernel(instruction: Instruction) -> str:
    """Return the kind of cost of a Pallas kernel, by the kernel's name. Memory traffic limits the speed of the passes around the
    attention, so their kind is "element-wise"."""
    if "attention_" in instruction.text or "block_sparse_" in instruction.text:
        return "attention"
    return "matmul" if "causal_conv" in instruction.text else "element-wise"


class _CostAdder:
    """Sums the costs of computations. Each computation is evaluated once."""

    def __init__(self, computations: dict[str, list[Instruction]], chip: Chip, kernel_cycles) -> None:
        self._computations, self._chip, self._kernel_cycles = computations, chip, kernel_cycles
        self._costs: dict[str, Cost] = {}

    def cost(self, name: str) -> Cost:
        if name not in self._costs:
            self._costs[name] = self._sum(self._computations[name])
        return self._costs[name]

    def _sum(self, instructions: list[Instruction]) -> Cost:
        """Sum the costs in schedule order. The order matters, because work hides only transfers that have started and not
        ended."""
        total, under_way = Cost(), {}
        for instruction in instructions:
            if instruction.opcode.endswith("-start") and (kind := self._collective(instruction)):
                under_way[instruction.name] = self._transfer_seconds(instruction, kind)
            elif instruction.opcode == "async-update" and (started := self._started(instruction, under_way)):
                under_way[instruction.name] = under_way.pop(started)
            elif instruction.opcode.endswith("-done") and (started := self._started(instruction, under_way)):
                total.seconds["collectives"] += max(0.0, under_way.pop(started)[0])
            else:
                spent = self._one(instruction)
                total.add(spent)
                self._cover(under_way, spent.total, total)
        return total

    def _cover(self, under_way: dict[str, list[float]], seconds: float, total: Cost) -> None:
        """Count `seconds` of work as time in which the transfers (collectives) in `under_way` proceed.

        Subtract these seconds from the transfers' remaining seconds, and add them to `total.hidden`. The oldest transfer is
        served first, because links serve one transfer after the other.
        """
        for left in under_way.values():
            covered = min(left[0], seconds)
            left[0] -= covered
            seconds -= covered
            total.hidden += covered

    def _started(self, later: Instruction, under_way: dict) -> str | None:
        """Return the name of the transfer in `under_way` that the instruction `later` updates or ends. None if there is no such
        transfer."""
        return next((name for name in under_way if re.search(rf"%{re.escape(name)}(?![\w.\-])", later.text)), None)

    def _one(self, instruction: Instruction) -> Cost:
        cost, called = Cost(), instruction.called
        if instruction.opcode == "while":
            cost.add(self.cost(called["body"]), times=self._trips(called["condition"]))
        elif instruction.opcode == "conditional":
            cost.add(self._branch(list(called.values())))
        elif instruction.opcode in ("call", "async-start"):
            for name in dict.fromkeys(called.values()):
                cost.add(self.cost(name))
        elif instruction.opcode == "custom-call" and "tpu_custom_call" in instruction.text:
            cost.seconds[_kind_of_kernel(instruction)] += self._kernel_cycles(instruction) / self._chip.clock_hz
        elif kind := self._collective(instruction):
            cost.seconds["collectives"] += self._transfer_seconds(instruction, kind)[0]
        elif instruction.cycles:
            cost.seconds[self._kind(instruction)] += instruction.cycles / self._chip.clock_hz
        return cost

    def _branch(self, names: list[str]) -> Cost:
        """Return the cost of a conditional.

        The conditional of a step with the step cache costs as much as its branch with all layers. Any other conditional chooses
        between an attention and its fallback. It costs as much as its cheapest branch, the attention without the fallback.
        """
        has_layers = any(one.opcode == "while" for name in names for one in self._computations[name])
        return (max if has_layers else min)((self.cost(name) for name in names), key=lambda branch: branch.total)

    def _collective(self, instruction: Instruction) -> str | None:
        """Return the kind of collective that an instruction runs or starts asynchronously. None for other instructions."""
        opcode = instruction.opcode.removesuffix("-start")
        if opcode in COLLECTIVES:
            return opcode
        inner = self._inside(instruction) if opcode in ("async", "fusion") else []
        return next((one.opcode for one in inner if one.opcode in COLLECTIVES), None)

    def _inside(self, instruction: Instruction) -> Iterator[Instruction]:
        """Yield the instructions that this instruction calls, directly or through other calls.

        Collectives of the SparseCore are inside two nested calls.
        """
        for name in instruction.called.values():
            for one in self._computations.get(name, []):
                yield one
                yield from self._inside(one)

    def _transfer_seconds(self, instruction: Instruction, kind: str) -> list[float]:
        source = instruction
        if instruction.opcode.removesuffix("-start") not in COLLECTIVES:
            source = next(one for one in self._inside(instruction) if one.opcode == kind)
        size, members = largest_bytes(source.shape), _members(source.text)
        crossing = size * (members - 1) / members if kind != "collective-permute" else size
        crossing *= 2 if kind == "all-reduce" else 1
        return [crossing / self._chip.interconnect_bytes_per_second]

    def _kind(self, instruction: Instruction) -> str:
        inside = self._computations.get(instruction.called.get("calls", ""), [instruction])
        opcodes = {one.opcode for one in self._flattened(inside)}
        if opcodes & {"convolution", "dot"}:
            return "matmul"
        return "layout" if opcodes <= MOVING | {"fusion"} else "element-wise"

    def _flattened(self, instructions: list[Instruction]) -> Iterator[Instruction]:
        for one in instructions:
            yield one
            if one.opcode == "fusion" and one.called.get("calls") in self._computations:
                yield from self._flattened(self._computations[one.called["calls"]])

    def _trips(self, condition: str) -> int:
        """Return the number of iterations of a scan: the constant with which its counter is compared."""
        constants = [one for one in self._flattened(self._computations[condition]) if one.opcode == "constant"]
        values = [int(match.group(1)) for one in constants if (match := re.search(r"constant\((\d+)\)", one.text))]
        return max(values, default=1)


def largest_bytes(shape: str) -> int:
    """Return the size in bytes of the largest array in an instruction's shape, such as "(f32[8,128], bf16[2])"."""
    sizes = [_array_bytes(kind, dimensions) for kind, dimensions in _ARRAY.findall(shape) if kind in BYTES]
    return max(sizes, default=0)


def _array_bytes(kind: str, dimensions: str) -> int:
    size = BYTES[kind]
    for length in dimensions.split(","):
        size *= int(length) if length else 1
    return size


def _members(text: str) -> int:
    """Return the number of devices in one group of a collective."""
    if mesh := _MESH.search(text):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh.group(1)))
        used = re.findall(r"'(\w+)'", mesh.group(2))
        count = 1
        for axis in used:
            count *= int(sizes.get(axis, 1))
        return max(count, 2)
    groups = _GROUPS.search(text)
    if groups is None:
        return 2
    return groups.group(1).count(",") + 1 if groups.group(1) else int(groups.group(3))
