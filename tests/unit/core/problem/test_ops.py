"""The interface of every op kind, and how kinds are found."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.support import toys
from tests.support.between import between
from tests.support.chains import block
from tests.support.lanes import one_in
from tests.support.repository import ROOT
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.op_files import FILES
from tuner.core.problem.op_kinds import kind_of, op_kinds
from tuner.core.problem.ops.dataflow import Read
from tuner.core.problem.ops.op import LaunchOp, Op, Role, Tensor, cache, given, output
from tuner.core.problem.workload import Workload
from tuner.errors import InvalidInput

PAGED = {"page_tokens": 16, "heads_first": False}


WORKLOADS = (
    between(num_behind=3),
    between(pages=PAGED),
    between(rotary=False),
    block(16),
    block(4, bias=False),
)
OPS = [(workload, op) for workload in WORKLOADS for op in workload.ops]


@pytest.mark.parametrize(("workload", "op"), OPS, ids=lambda one: getattr(one, "name", ""))
def test_an_ops_tensors_are_what_it_names_and_its_own_and_its_output_is_the_last(workload: Workload, op: Op) -> None:
    tensors = op.tensors(workload.dtype)
    names = [tensor.name for tensor in tensors]
    assert len(set(names)) == len(names)
    assert (tensors[-1].name, tensors[-1].role, tensors[-1].shape) == (op.name, Role.OUTPUT, (op.m, op.c_columns))
    assert all(tensor.role is not Role.OUTPUT for tensor in tensors[:-1])
    assert {read.tensor: read.shape for read in op.reads}.items() <= {one.name: one.shape for one in tensors}.items()
    assert set(names) <= {*op.operands, *op.read_names, op.name}
    always = (".keys", ".values", ".lengths", ".pages", ".frequencies", ".squares")
    assert {name for name in op.operands if name.endswith(always)} <= set(names)
    assert all(tensor.range is not None for tensor in tensors if tensor.dtype == "int32"), (
        "a launch's integers have one"
    )
    assert all(tensor.is_early == (tensor.role is Role.WEIGHT) for tensor in tensors)


@pytest.mark.parametrize(("workload", "op"), OPS, ids=lambda one: getattr(one, "name", ""))
def test_an_ops_json_brings_it_back_by_its_kind(workload: Workload, op: Op) -> None:
    kind = kind_of(op)
    assert kind is not None
    for data in (op.to_json(), op.to_job_json()):
        plain = json.loads(json.dumps(data))
        assert kind.op.from_json(plain, workload.dtype) == op
        assert Workload.from_json({**workload.to_json(), "ops": [plain]} | {"kind": "chain"}).ops == (op,)


def test_one_kind_alone_is_unnamed_in_json() -> None:
    assert sum(kind.is_unnamed for kind in op_kinds().values()) == 1


class Shade(StrEnum):
    LIGHT = "light"
    DARK = "dark"


@dataclass(frozen=True, kw_only=True)
class Halo:
    left: int = 0
    right: int = 0


@dataclass(frozen=True, kw_only=True)
class PlainOp(LaunchOp):
    KIND: ClassVar[str] = "plain"

    name: str
    m: int
    n: int
    source: str = "x"
    factor: float = 1.0
    shade: Shade = Shade.LIGHT
    halo: Halo | None = None
    strides: tuple[int, ...] = ()
    is_odd: bool = False

    @property
    def c_columns(self) -> int:
        return self.n

    @property
    def reads(self) -> tuple[Read, ...]:
        return (Read("source", self.source, (self.m, self.n)),)

    @property
    def num_flops(self) -> int:
        return 0

    def tensors(self, dtype: Dtype) -> tuple[Tensor, ...]:
        shape = (self.m, self.n)
        state = cache(f"{self.name}.state", (3, *shape), "fp32")
        return (given(self.source, shape, dtype), state, output(self.name, shape, dtype))


def test_the_json_of_a_new_kind_follows_from_its_fields_and_has_no_defaults() -> None:
    short = PlainOp(name="a", m=1, n=2)
    assert short.to_json() == {"op": "plain", "name": "a", "m": 1, "n": 2}
    long = PlainOp(
        name="a", m=1, n=2, source="b", factor=0.5, shade=Shade.DARK, halo=Halo(right=1), strides=(1, 2), is_odd=True
    )
    data = json.loads(json.dumps(long.to_json()))
    assert data == {
        "op": "plain", "name": "a", "m": 1, "n": 2, "source": "b", "factor": 0.5, "shade": "dark",
        "halo": {"right": 1}, "strides": [1, 2], "is_odd": True,
    }  # fmt: skip
    assert [PlainOp.from_json(one.to_json(), Dtype.BF16) for one in (short, long)] == [short, long]
    assert long.operands == ("a.state",)
    assert long.tensors(Dtype.FP16)[1].num_bytes == 3 * 2 * 4


@pytest.mark.parametrize(
    ("changed", "field", "problem"),
    [
        ({"wide": 1}, "wide", "is not a known field"),
        ({"m": None}, "m", "None"),
        ({"m": True}, "m", "True"),
        ({"m": 1.0}, "m", "1.0"),
        ({"factor": "1"}, "factor", "'1'"),
        ({"factor": float("nan")}, "factor", "nan"),
        ({"shade": "blue"}, "shade", "blue"),
        ({"halo": 1}, "halo", "1"),
        ({"halo": {"up": 1}}, "halo.up", "is not a known field"),
        ({"halo": {"left": "1"}}, "halo.left", "'1'"),
        ({"strides": 1}, "strides", "1"),
        ({"strides": [1, "2"]}, "strides.1", "'2'"),
        ({"is_odd": 1}, "is_odd", "1"),
        ({"name": 7}, "name", "7"),
    ],
)
def test_a_wrong_field_is_named_with_what_would_be_right(changed: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem) as caught:
        PlainOp.from_json({"op": "plain", "name": "a", "m": 1, "n": 2, **changed}, Dtype.FP16)
    assert caught.value.field == field


def test_a_missing_field_is_named() -> None:
    with pytest.raises(InvalidInput, match="is missing") as caught:
        PlainOp.from_json({"op": "plain", "name": "a", "m": 1}, Dtype.FP16)
    assert caught.value.field == "n"


GATHER = {"op": "gather", "name": "embed", "m": 16, "n": 512, "table_rows": 4096}


def test_an_op_of_an_unknown_kind_keeps_its_json_and_its_workload_its_digest(tmp_path: Path) -> None:
    product = {"name": "up", "m": 16, "n": 256, "k": 512, "source": "embed", "activation": "silu", "bias": False}
    data = {"kind": "chain", "ops": [GATHER, product], "dtype": "bf16"}
    workload = Workload.from_json(data)
    assert (workload.unknown_kinds, workload.to_json()) == (("gather",), data)
    assert "an op of the unknown kind gather" in workload.describe()
    program = f"""
from tuner.core.problem.workload import Workload
one = Workload.from_json({data!r})
print(one.unknown_kinds, one.digest)
"""
    assert toys.run(program, toys.install("gather", tmp_path)).split() == ["()", workload.digest]


def test_a_kind_of_another_package_is_found_by_its_entry_point(tmp_path: Path) -> None:
    program = f"""
from tuner.core.problem.op_kinds import op_kinds, part_of
from tuner.core.problem.workload import Workload
one = Workload.from_json({{"kind": "chain", "ops": [{GATHER!r}], "dtype": "bf16"}})
print(sorted(op_kinds()), one.unknown_kinds, one.describe(), one.compulsory_bytes, sep="; ")
print(part_of("gather", "costs").__name__, part_of("gather", "stamps"), part_of("another", "costs"))
"""
    known, part = toys.run(program, toys.install("gather", tmp_path)).splitlines()
    rows, kinds = 16 * 512 * 2, sorted({*op_kinds(), "gather"})
    assert known == f"{kinds}; (); gather bf16 gather of 16 from 4096 x 512; {3 * rows + 16 * 4 + 4}"
    assert part == "toy_gather.costs None None"


DECLARED = "toy_gather.op:KIND"
MISSING = "ModuleNotFoundError: No module named 'no_such_module'"
IMPORTED = f"{DECLARED} cannot be imported:"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "reason"),
    one_in(
        2,
        [
            ("from tuner", "import no_such_module\nfrom tuner", f"{IMPORTED} {MISSING} (op.py, line 9)"),
            ("from tuner", "1 / 0\nfrom tuner", f"{IMPORTED} ZeroDivisionError: division by zero (op.py, line 9)"),
            ("from tuner", "raise SystemExit(3)\nfrom tuner", f"{IMPORTED} SystemExit: 3 (op.py, line 9)"),
            (
                "KIND = OpKind(op=GatherOp, version=1)",
                "",
                f"{IMPORTED} AttributeError: module 'toy_gather.op' has no attribute 'KIND'",
            ),
            ("KIND = OpKind(op=GatherOp, version=1)", "KIND = 1", f"{DECLARED} is not a kind of op, but 1"),
            (
                'KIND: ClassVar[str] = "gather"',
                'KIND: ClassVar[str] = "Gather it"',
                f"{DECLARED} is called 'Gather it' but declared as 'gather': use one "
                "name of lower-case letters, digits, - and _",
            ),
            (
                "version=1)",
                "version=1, is_unnamed=True)",
                (f"{DECLARED} omits its name from JSON, as another kind already does"),
            ),
            ("def num_flops(", "def num_operations(", f"{DECLARED} lacks num_flops"),
            (
                "class GatherOp(LaunchOp)",
                "class GatherOp(LaunchOp.__base__)",
                f"{DECLARED} lacks a base, TileOp or LaunchOp",
            ),
            ("@dataclass(frozen=True, kw_only=True)", "", f"{DECLARED} has ops that are not a dataclass with a name"),
            ("frozen=True, kw_only", "kw_only", f"{DECLARED} has ops whose class is not a frozen dataclass"),
            (
                '"m", "table_rows")',
                '"m", "tables")',
                f"{DECLARED} lists tables as what ops may differ in, which are not their fields: name these in FREE",
            ),
        ],
    ),
)
def test_a_kind_that_is_none_is_told_and_keeps_nobody_from_the_others(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    site = toys.install("gather", tmp_path)
    path = site / "toy_gather" / "op.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    program = "from tuner.core.problem import op_kinds as k\nprint(sorted(k.op_kinds()), dict(k.broken_kinds()))"
    assert toys.run(program, site).strip() == f"{sorted(op_kinds())} { ({'gather': reason})!r}"


@pytest.mark.slow
@pytest.mark.parametrize("file", ["asked", "rules"])
def test_a_kind_with_a_file_that_cannot_be_imported_is_told_where_others_are_served(tmp_path: Path, file: str) -> None:
    """The file is imported when a server asks for models of requests."""
    site = toys.install("gather", tmp_path)
    with (site / "toy_gather" / f"{file}.py").open("a") as written:
        written.write("\nimport no_such_module\n")
    program = """
from tuner.wire.requests.pairs import KINDS
from tuner.core.problem.op_kinds import broken_kinds, op_kinds
print(sorted(op_kinds()), "gather" in KINDS, dict(broken_kinds()))
"""
    place = "toy_gather.asked" if file == "asked" else "toy_gather"
    line = len((site / "toy_gather" / f"{file}.py").read_text().splitlines())
    reason = (
        f"{place} cannot be imported: ModuleNotFoundError: No module named 'no_such_module' ({file}.py, line {line})"
    )
    assert toys.run(program, site).strip() == f"{sorted(op_kinds())} False { ({'gather': reason})!r}"


CULPRIT = """
import pickle
from tuner.core.problem.op_kinds import culprit
from tuner.core.problem.workload import Workload
from tuner.search.processes import _portable
one = Workload.from_json({"kind": "chain", "ops": [%r], "dtype": "bf16"}).ops[0]
try:
    one.describe()
except ZeroDivisionError as error:
    print(culprit(error))
    print(culprit(pickle.loads(pickle.dumps(_portable(error)))))
print(culprit(ValueError()))
"""


@pytest.mark.slow
def test_what_a_packages_code_raises_is_said_to_be_its_fault_here_and_from_another_process(tmp_path: Path) -> None:
    site = toys.install("gather", tmp_path)
    path = site / "toy_gather" / "op.py"
    path.write_text(path.read_text().replace('return f"gather', 'return f"{1 // 0}gather'))
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if "1 // 0" in text)
    here = f"the package toy_gather (op.py, line {line})"
    assert toys.run(CULPRIT % GATHER, site).splitlines() == [here, here, "the service"]


def test_every_file_that_somebody_asks_a_kind_for_is_looked_at() -> None:
    """The files are found by string literals in calls; `part_of` refuses others."""
    sources = [path.read_text() for room in ("tuner", "workers") for path in (ROOT / room).rglob("*.py")]
    asked = {name for text in sources for name in re.findall(r"\bpart_of\(\s*[\w.]+, \"([\w.]+)\"", text)}
    assert len(asked) > 15
    assert asked <= set(FILES)


def test_a_second_kind_of_a_name_is_told(tmp_path: Path) -> None:
    site = toys.install("gather", tmp_path)
    about = next(site.glob("*.dist-info")) / "entry_points.txt"
    about.write_text(about.read_text().replace("gather = ", "attention = "))
    path = site / "toy_gather" / "op.py"
    path.write_text(path.read_text().replace('= "gather"', '= "attention"'))
    program = "from tuner.core.problem.op_kinds import *\nprint(op_kinds()['attention'].op.__name__, broken_kinds())"
    kept, answer = toys.run(program, site).split(" ", 1)
    assert kept == "AttentionOp"
    assert "is called attention, like a kind that already exists" in answer


def test_a_kind_is_of_the_standard_library_alone() -> None:
    """Because a client has nothing else installed."""
    program = """
import sys
from tuner.core.problem.op_kinds import op_kinds
assert len(op_kinds()) >= 2
own = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names - {"tuner", "__main__", "_virtualenv"}
print(sorted(name for name in own if not name.startswith("_")))
"""
    assert toys.run(program).strip() == "[]"
