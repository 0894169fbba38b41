"""Packages with wrong hooks, rows or parts are left out by name, with a message that says what would be right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import toys
from tests.support.lanes import one_in
from tuner.core.problem.op_files import FILES, file_problem
from tuner.core.problem.op_kinds import op_kinds, part_of

#: By toy: a file, its correct text, a wrong replacement, and the message about it.
FAULTS = {
    "depthwise": [
        ("rules", "op: DepthwiseOp, tile: Tile, chosen", "op: DepthwiseOp, chosen",
         "has resources_of, which takes (op, chosen, dtype, num_threads): "
         "pass a function of (op, tile, chosen, dtype, num_threads)"),
        ("rules", 'ENGINES = ("mma", "simt", "wgmma")', 'ENGINES = "mma"',
         "has ENGINES, which is 'mma': use a list of a string"),
        ("rules", 'ENGINES = ("mma", "simt", "wgmma")', "ENGINES = (1,)",
         "has ENGINES, which is (1,), of tuple: use a list of a string"),
        ("rules", 'ENGINES = ("mma", "simt", "wgmma")', "", "lacks ENGINES: add a list of a string"),
        ("rules", "def refuse(", "class Refuse:\n    pass\nrefuse = Refuse\ndef other(",
         "has refuse, which is the class Refuse: pass a function of (workload, gpu, op, schedule)"),
        ("lowering", "*, num_parts: int, in_band: bool", "num_parts: int",
         "has lower, which takes (op, tile, chosen, num_parts): "
         "pass a function of (op, tile, chosen, *, num_parts, in_band)"),
        ("source", "def version(", "async def version(", "has version, which is a coroutine, which nothing awaits: "
         "pass a function of ()"),
        ("source", "def task_of(", "def text_of(", "lacks task_of: add a function of (op, tile, chosen, dtype)"),
        ("costs", "def task_us(", "task_us = 3.0\ndef other(",
         "has task_us, which is 3.0: pass a function of (op, tile, chosen, dtype, gpu)"),
        ("reference", "*, roundoff: float, off: Any = None", "*, unit: float, off: Any = None",
         "has reference, which takes (xp, op, a, w, *, unit, off): "
         "pass a function of (xp, op, a, w, *, roundoff, off)"),
        ("lowering", None, None, "has no file lowering.py with lower"),
        ("costs", None, None, "has no file costs.py with library_us, task_us"),
    ],
    "gather": [
        ("plans", "def plan_of(op: GatherOp, schedule: GatherSchedule, gpu: Gpu)", "def plan_of(op, schedule)",
         "has plan_of, which takes (op, schedule): pass a function of (op, schedule, gpu)"),
        ("launches", "workload: Workload)", "workload: Workload, more)",
         "has launches_of, which takes (op, schedule, plan, workload, more): "
         "pass a function of (op, schedule, plan, workload)"),
        ("space", "    def near(", "    def nearest(",
         "has OpSpace, which is the class OpSpace: pass a function of (*, workload, gpu, op)"),
        ("search", "SEARCH = ", "SEARCH = lambda: ", "has SEARCH, which is"),
        ("search", "distance=distance", "distance=lambda one: 0.0",
         "has SEARCH, which has distance, which takes (one): pass a function of (argument0, argument1)"),
        ("words", "def explain(", "def explained(",
         "lacks explain: add a function of (op, schedule, plan, workload, gpu)"),
        ("numbers", "dtype: Dtype, xp: Any)", "dtype: Dtype)",
         "has reference, which takes (op, given, dtype): pass a function of (op, given, dtype, xp)"),
        ("search", None, None, "has no file search.py with"),
    ],
}  # fmt: skip
#: What replaces a file in a process with the toy.
_ASK = """
import importlib, json, pathlib, sys, types
from tuner.core.problem.op_files import file_problem
from tuner.core.problem.op_kinds import op_kinds, part_of
name, faults = json.loads(%r)
op, said = op_kinds()[name].op, []
for file, old, new, _ in faults:
    if old is None:
        said.append(file_problem(op, file, None))
        continue
    path = pathlib.Path(importlib.import_module(f"toy_{name}").__file__).with_name(f"{file}.py")
    assert old in path.read_text(), (file, old)
    made = types.ModuleType(f"toy_{name}.changed_{len(said)}")
    sys.modules[made.__name__] = made
    exec(compile(path.read_text().replace(old, new, 1), str(path), "exec"), made.__dict__)
    said.append(file_problem(op, file, made))
print(json.dumps(said))
"""


@pytest.mark.slow
@pytest.mark.parametrize("toy", FAULTS)
def test_a_file_that_is_not_what_is_asked_is_told_with_what_would_be_right(toy: str, tmp_path: Path) -> None:
    faults = FAULTS[toy]
    said = json.loads(toys.run(_ASK % json.dumps([toy, faults]), toys.install(toy, tmp_path)))
    for (file, old, _, reason), one in zip(faults, said, strict=True):
        wanted = reason if old is None else f"({file}.py) {reason}"
        assert one == wanted or (one.startswith(wanted) and wanted[-1] not in ")g"), (one, wanted)


def _changed(site: Path, file: str, old: str, new: str) -> None:
    (found,) = site.glob(f"toy_*/{file}")
    text = found.read_text()
    assert old in text
    found.write_text(text.replace(old, new, 1))


_SERVED = """
import json
from tuner.core.problem.op_kinds import broken_kinds, check_kinds, op_kinds
check_kinds()
print(json.dumps([sorted(op_kinds()), dict(broken_kinds())]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("toy", "file", "old", "new", "reason"),
    one_in(2, [
        ("gather", "rules.py", "def refuse(workload: Workload, gpu: Gpu, ", "def refuse(",
         "toy_gather (rules.py) has refuse, which takes (op, schedule): "
         "pass a function of (workload, gpu, op, schedule)"),
        ("gather", "op.py", "version=1)", 'version="one")',
         "toy_gather.op:KIND has version, which is 'one': use a whole number"),
        ("gather", "op.py", "    @property\n    def c_columns", "    def c_columns",
         "toy_gather.op:KIND has ops whose class has c_columns as a method: make it a property"),
        ("gather", "op.py", "def tensors(self, dtype: Dtype)", "def tensors(self)",
         "toy_gather.op:KIND has ops whose class has tensors, which takes (self): pass a function of (self, dtype)"),
        ("depthwise", "op.py", "    @property\n    def k(", "    @property\n    def taps_of_k(",
         "toy_depthwise.op:KIND has ops without k: add fields or properties"),
        ("depthwise", "schedule.py", 'kind="depthwise"', 'kind="attention"',
         "toy_depthwise (schedule.py) has a class of the kind 'attention': declare its class with kind='depthwise'"),
        ("gather", "op.py", "    table_rows: int = field", "    made: int = 1\n    table_rows: int = field",
         "toy_gather.op:KIND has ops whose class has the field made, but all ops have something else by that name"),
        ("gather", "schedule.py", "rows_per_cta: int = axis", "op: int = axis",
         "toy_gather (schedule.py) has an axis called 'op', which every schedule has: use another name"),
        ("depthwise", "rules.py", "ENGINES = ", "raise SystemExit(3)\nENGINES = ",
         "toy_depthwise cannot be imported: SystemExit: 3"),
    ]),
)  # fmt: skip
def test_a_server_leaves_such_a_kind_out_and_has_the_others(
    toy: str, file: str, old: str, new: str, reason: str, tmp_path: Path
) -> None:
    site = toys.install(toy, tmp_path)
    _changed(site, file, old, new)
    known, broken = json.loads(toys.run(_SERVED, site))
    assert known == sorted(op_kinds())
    assert broken[toy].startswith(reason)


_RETURNED = """
from tests.support.depthwise import chain, tiling
from tuner.core.plan.graph.lowering import lower
from tuner.core.problem.op_kinds import culprit
from tuner.core.schedule.tiling import Tile
try:
    lower(chain().tile_ops[1], Tile(m=16, n=16, k=16))
except TypeError as error:
    print(error)
    print(culprit(error))
"""


def test_a_hook_that_returns_something_else_is_told_where_it_comes_from(tmp_path: Path) -> None:
    site = toys.install("depthwise", tmp_path)
    _changed(site, "lowering.py", "return TileSpace(", "return vars(TileSpace(")
    _changed(site, "lowering.py", "row_axes=2,\n    )", "row_axes=2,\n    ))")
    said, whose = toys.run(_RETURNED, site).splitlines()
    assert said.startswith("what toy_depthwise.lowering.lower returned is {")
    assert said.endswith("of dict: use TileSpace")
    assert whose.startswith("the package toy_depthwise (lowering.py, line")


_ROWS = """
import json
from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
def why(table, name):
    try:
        return str(table(name))
    except ValueError as error:
        return str(error)
print(json.dumps([why(Dtype, "e5m2"), why(Activation, "toy_relu2"), why(Dtype, "single")]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "which", "reason"),
    [
        ("to_bits=_to_e5m2", "to_bits=lambda values: values", 0,
         "has to_bits, which takes (values): pass a function of (argument0, argument1)"),
        ("number=200,\n    array_name", 'number="200",\n    array_name', 0,
         "has number, which is '200': use a whole number"),
        ("bits=8", "bits=8.0", 0, "has bits, which is 8.0: use a whole number"),
        ("host=lambda xp, z:", "host=lambda z:", 1, "has host, which takes (z)"),
        ("spread=lambda xp, z, error:", "spread=3.0, aliases=lambda xp, z, error:", 1, "has aliases, which is"),
    ],
)  # fmt: skip
def test_a_row_whose_fields_are_of_other_types_is_told(
    old: str, new: str, which: int, reason: str, tmp_path: Path
) -> None:
    site = toys.install("rows", tmp_path)
    _changed(site, "__init__.py", old, new)
    said = json.loads(toys.run(_ROWS, site))
    assert reason in said[which]
    assert said[2] == "single", "the other kinds of the package work"


def _kernel(fields: str) -> str:
    return f"    kernel: ClassVar[Any] = type(AddedPart.kernel)({fields})\n    #: No element"


_PARTS = """
from tuner.core.problem.epilogue.added import _found
print(sorted(_found().parts), _found().broken)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    one_in(2, [
        ("softcap.py", "xp: Any, values: Any, *tensors: Any) -> Any:\n        return self",
         "values: Any) -> Any:\n        return self",
         "Softcap has host, which takes (self, values): "),
        ("softcap.py",
         "stage: ClassVar[Stage] = Stage.OUTPUT", 'stage: ClassVar[Stage] = "output"', "Softcap has stage, which is"),
        ("softcap.py", "    #: No element", _kernel('multiplies="Mine"'),
         "Softcap has kernel with engines (), but its device file is for wgmma: use ('wgmma',)"),
        ("softcap.py", "    #: No element", _kernel('engines=("wgmma",), is_swapped=True, stores="Mine"'),
         "Softcap has no device file: "),
        ("softcap.py", "cap: float", "part: float\n    cap: float",
         "Softcap has the field 'part', which documents use"),
        ("softcap.py", "def problem(self, op: Product)", "def problem(self)",
         "Softcap has problem, which takes (self): "),
        ("column_scale.py", 'Own(name="factors")', 'Own(name="factors", dtype="fp64")',
         "ColumnScale has the tensor 'factors' of 'fp64': use fp32, int32, or '' for the op's own"),
        ("column_scale.py", "error: Any, *tensors: Any", "error: Any",
         "ColumnScale has spread, which takes (self, xp, values, error)"),
    ]),
)  # fmt: skip
def test_a_part_that_is_not_what_is_asked_is_told(file: str, old: str, new: str, reason: str, tmp_path: Path) -> None:
    site = toys.install("parts", tmp_path)
    _changed(site, file, old, new)
    assert reason in toys.run(_PARTS, site)


@pytest.mark.parametrize("kind", op_kinds())
def test_the_programs_own_kinds_have_what_is_asked_of_a_packages(kind: str) -> None:
    for name in FILES:
        if name != "card" and (file := part_of(kind, name)) is not None:
            assert file_problem(op_kinds()[kind].op, name, file) == "", name
