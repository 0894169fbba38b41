"""Changes that contributors commonly make, planted in a copy of the program: all their lines, and checks of the
consequences.

`test_planted_changes.py` makes the copy, regenerates the derived files, and then runs this module in it, which lists
what each change left out of date. Nothing else is edited.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.repository import ROOT


@dataclass(frozen=True, kw_only=True)
class Line:
    """Lines that are written into a file."""

    file: str
    text: str
    #: They are inserted before this text, which must occur once; empty for a new file.
    before: str = ""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A common kind of change."""

    name: str
    #: The beginning of the row in the task menu.
    row: str
    lines: tuple[Line, ...]
    #: Runs in the copy, and raises if the program, a document or a schema does not know the change.
    check: Callable[[], None]
    #: Modules of programs that write generated files; the row names them.
    programs: tuple[str, ...] = ()


def _check_schema() -> None:
    """Checks that the documented schema of schedule files is the one in use."""
    from tests.house.axes_page import SCHEMA
    from tuner.schedule_files.schema import file_schema

    assert json.loads(SCHEMA.read_text()) == json.loads(json.dumps(file_schema()))


def _check_number(name: str, number: int) -> None:
    """Checks that C programs can use a row's number, and that the C runtime has the table of rows."""
    from tuner.runtime.binding import native
    from tuner.runtime.binding.rows import HEADER, header

    assert native.HEADER.constants[f"TUNER_{name.upper()}"] == number
    assert HEADER.read_text() == header(own_alone=True)


def _activation() -> None:
    from tuner.core.problem.activation import Activation
    from tuner.core.problem.workload import Workload
    from tuner.ops.gemm.pairs import ffn_pair
    from tuner.schedule_files.schema import workload_schema

    workload = ffn_pair(m=16, d_in=1024, d_hidden=2048, d_out=1024, activation=Activation("planted"))
    assert Workload.from_json(workload.to_json()) == workload
    assert "planted" in str(workload_schema())
    _check_number("planted", 9)
    _check_schema()


def _dtype() -> None:
    from tuner.core.problem.dtype import Dtype
    from tuner.ops.gemm.pairs import ffn_pair

    assert ffn_pair(m=16, d_in=1024, d_hidden=2048, d_out=1024, dtype=Dtype("planted_type")).weight_bytes
    _check_number("planted_type", 9)
    _check_schema()


def _raster() -> None:
    from tests.house import test_docs
    from tests.support.cases import H200
    from tests.support.spaces import space_of
    from tuner.core.proof.candidate_plans import plans_for
    from tuner.core.schedule.candidate import fused
    from tuner.core.schedule.ordering import Raster, RasterKind
    from tuner.core.space.ordering_values import RASTERS
    from tuner.core.space.sweeps import Sweep, swept
    from tuner.ops.gemm.pairs import ffn_pair
    from tuner.wire.responses.words import candidate_words

    workload = ffn_pair(m=2048, d_in=1024, d_hidden=4096, d_out=1024)
    one = Raster(kind=RasterKind("planted"))
    assert one in RASTERS, "it is offered"
    plain = next(iter(space_of(workload, H200)))
    other = fused(plain.but(ordering=replace(plain.ordering, rasters=(one, one))))
    assert len(plans_for(workload, H200, other)) == 1
    assert "from the last tile to the first" in " ".join(candidate_words(other, workload))
    assert any("planted" in str(found.schedule) for found in swept(Sweep.RASTERS, workload, H200, fused(plain)))
    test_docs.test_every_value_of_an_axis_has_its_meaning(RasterKind, ROOT)
    _check_schema()


def _counter() -> None:
    from tests.house import test_docs
    from tuner.workers.cupti.metrics import BASE_SET

    assert "sm__planted.sum" in BASE_SET
    test_docs.test_every_metric_of_the_base_set_and_every_derived_figure_is_explained(ROOT)


def _column() -> None:
    from tuner.api.pages.trial_table import CSV_HEADER, chosen_columns

    (one,) = chosen_columns(["planted"])
    assert one.heading == "Planted"
    assert "planted" in CSV_HEADER


def _plan_kind() -> None:
    from tests.house import test_docs
    from tests.support.cases import H200
    from tests.support.spaces import space_of
    from tuner.core.model.forecast import forecast_us
    from tuner.core.proof.candidate_plans import plans_for
    from tuner.core.schedule.candidate import Candidate
    from tuner.core.schedule.plan_kinds import PlanKind, in_turn
    from tuner.ops.gemm.pairs import ffn_pair
    from tuner.wire.responses.words import candidate_words

    kind, workload = PlanKind("planted"), ffn_pair(m=16, d_in=1024, d_hidden=2048, d_out=1024)
    one = Candidate(plan_kind=kind, schedule=next(iter(space_of(workload, H200))))
    assert len(plans_for(workload, H200, one)) == 1
    assert forecast_us(workload, H200, one) > 0
    assert kind in in_turn(2)
    assert "One planted launch." in candidate_words(one, workload)
    test_docs.test_every_plan_kind_has_its_row_and_is_in_the_glossary(ROOT)


def _rates() -> None:
    from tuner.core.model.rates import fit_of, rates_of
    from tuner.core.problem.gpu import CATALOGUE

    fit = fit_of("a40")
    assert fit is not None
    assert fit.gpu == "a40"
    assert rates_of(CATALOGUE["a40"]) == fit.rates


def _gpu() -> None:
    from tests.support.spaces import space_of
    from tuner.core.problem.gpu import listed_gpu, parse_target
    from tuner.ops.gemm.pairs import ffn_pair

    gpu = parse_target("simulated:planted").gpu
    assert listed_gpu("NVIDIA Planted 1") is gpu
    assert next(iter(space_of(ffn_pair(m=16, d_in=1024, d_hidden=2048, d_out=1024), gpu)))
    _check_schema()


def _family() -> None:
    from tuner.client.models.models import ffn_shapes

    config: dict[str, object] = {
        "model_type": "planted",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 2,
    }
    config["torch_dtype"] = "bfloat16"
    assert sum(ffn_shapes(config).values()) == 2


def _deadline() -> None:
    from tests.house import test_configuration
    from tests.support.unanswered import check_a_planted_phase_is_killed_at
    from tuner.settings import Settings

    settings = Settings.model_validate({"planted_deadline_s": 3.0})
    assert getattr(settings.limits, "planted_deadline_s") == 3.0  # noqa: B009  # the copy alone has it
    check_a_planted_phase_is_killed_at(0.2)
    page = (ROOT / "docs/configuration.md").read_text()
    test_configuration.test_a_setting_has_its_row("planted_deadline_s", page)
    test_configuration.test_no_row_is_left_of_what_is_gone(page)


_ACTIVATION = """\
    PLANTED = ActivationRow(
        name="planted", number=9, host=lambda xp, z: xp.maximum(z, 0), device="max_or_nan(x, 0.0f)",
        torch=lambda functional, z: functional.relu(z), spread=_GENTLE,
    )
"""
_DTYPE = "    PLANTED = type(FP16)(**{**vars(FP16), 'name': 'planted_type', 'number': 9, 'array_name': 'planted16'})\n"
_KIND = """\
    PlanKind.PLANTED: KindRow(
        sentence="One planted launch.", is_fused=True, base=PlanKind.FUSED, turns=(4,),
    ),
"""
_DEADLINE = """\
    planted_deadline_s: float = Field(default=Limits.planted_deadline_s, description="seconds that are planted")
"""
_ENFORCED = """\
    def planted(self, problem: Problem, work: messages.Work) -> None:
        request = messages.EnergyRequest(problem=problem, work=work)
        self.ask(problem, request, messages.EnergyAnswer, self._limits.planted_deadline_s, "the planted phase")

"""
_FAMILY = """\
    "planted": Family(
        defaults=_defaults(1024, 4096, 2, 8, None, **_SILU), windows=Windows.NONE, biases=Biases.NONE,
    ),
"""

CHANGES = (
    Change(
        name="an activation",
        row="an activation",
        lines=(
            Line(file="tuner/core/problem/activation.py", text=_ACTIVATION, before="    locals().update("),
            Line(
                file="runtime/include/tuner/tuner.h",
                text="enum { TUNER_PLANTED = 9 };\n",
                before="enum { TUNER_IDENTITY",
            ),
        ),
        programs=("tuner.runtime.binding.rows", "tests.house.axes_page"),
        check=_activation,
    ),
    Change(
        name="a dtype",
        row="a dtype",
        lines=(
            Line(file="tuner/core/problem/dtype.py", text=_DTYPE, before="    locals().update("),
            Line(
                file="runtime/include/tuner/tuner.h",
                text="enum { TUNER_PLANTED_TYPE = 9 };\n",
                before="enum { TUNER_FP16",
            ),
        ),
        programs=("tuner.runtime.binding.rows", "tests.house.axes_page"),
        check=_dtype,
    ),
    Change(
        name="a raster",
        row="a raster",
        lines=(
            Line(
                file="tuner/core/schedule/ordering.py",
                text="    #: Backwards.\n"
                "    PLANTED = RasterRow(name='planted', number=9, sentence='from the last tile to the first')\n",
                before="    #: The path with the least traffic",
            ),
            Line(
                file="tuner/core/plan/order/rasters.py",
                text="        case RasterKind.PLANTED:\n            order = index[::-1]\n",
                before="        case RasterKind.EXACT:",
            ),
            Line(file="docs/schedule-space.md", text="| `planted` | backwards |\n", before="| `hilbert` | a Hilbert"),
        ),
        programs=("tests.house.axes_page",),
        check=_raster,
    ),
    Change(
        name="a hardware counter",
        row="a hardware counter",
        lines=(
            Line(
                file="workers/cupti/metrics.py",
                text='    "sm__planted.sum": MetricInfo(unit="", description="Planted."),\n',
                before='    "lts__t_bytes.sum": ',
            ),
            Line(file="docs/measuring.md", text="| `sm__planted.sum` | planted |\n", before="| `lts__t_bytes.sum` |"),
        ),
        check=_counter,
    ),
    Change(
        name="a column of the table of trials",
        row="a column of the table of trials",
        lines=(
            Line(
                file="tuner/api/pages/trial_table.py",
                text='    _figure("planted", "Planted", _of_measured("time_us"), microseconds),\n',
                before='    _figure("library_us", ',
            ),
        ),
        check=_column,
    ),
    Change(
        name="a plan kind",
        row="a plan kind",
        lines=(
            Line(
                file="tuner/core/schedule/plan_kinds.py",
                text="    #: As it might be.\n    PLANTED = 'planted'\n",
                before="\n    @property\n    def row(",
            ),
            Line(file="tuner/core/schedule/plan_kinds.py", text=_KIND, before="}\n\n\ndef in_turn("),
            Line(
                file="docs/schedule-space.md", text="| `planted` | planted |\n", before="| `two_streams` | our kernel"
            ),
            Line(file="docs/glossary.md", text="`planted`, ", before="`two_streams`, `fused`, `fused_pdl` or"),
        ),
        check=_plan_kind,
    ),
    Change(
        name="a GPU's rates",
        row="a GPU's rates",
        lines=(
            Line(
                file="tuner/core/model/fits/a40.json",
                text=(ROOT / "tuner/core/model/fits/h100.json").read_text().replace('"h100"', '"a40"'),
            ),
        ),
        check=_rates,
    ),
    Change(
        name="a GPU",
        row="a GPU model",
        lines=(
            Line(
                file="tuner/core/problem/gpu.py",
                text='        _gpu("planted", "Planted 1", (9, 0), 132, 2048, 50, 80, 3350, 989.4, 1980),\n',
                before='        _gpu("b200", ',
            ),
        ),
        programs=("tests.house.axes_page",),
        check=_gpu,
    ),
    Change(
        name="a model family",
        row="a model family",
        lines=(Line(file="tuner/client/models/model_families.py", text=_FAMILY, before='    "qwen2": Family('),),
        check=_family,
    ),
    Change(
        name="a deadline",
        row="a deadline",
        lines=(
            Line(
                file="tuner/core/trial/limits.py",
                text="    #: Seconds as planted.\n    planted_deadline_s: float = 7.0\n",
                before="    #: Seconds for all passes of the profiler.",
            ),
            Line(file="tuner/settings.py", text=_DEADLINE, before='    log_format: Literal["text", "json"] = Field('),
            Line(file="workers/host/asking.py", text=_ENFORCED, before="    def energy("),
            Line(
                file="docs/configuration.md",
                text="| | `TUNER_PLANTED_DEADLINE_S` | `7.0` | planted |\n",
                before="| | `TUNER_BUILD_DEADLINE_S` |",
            ),
        ),
        check=_deadline,
    ),
)


def plant(change: Change, root: Path) -> None:
    """Writes a change's lines into a copy of the program."""
    for line in change.lines:
        file = root / line.file
        text = file.read_text() if line.before else ""
        assert not line.before or text.count(line.before) == 1, f"{line.file} has {line.before!r} once"
        file.write_text(text.replace(line.before, line.text + line.before) if line.before else line.text)


def found(change: Change) -> str:
    """The checks that do not reflect a change; empty if all do."""
    try:
        change.check()
    except Exception as error:  # any error of the check
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} in {where.line}"
    return ""


if __name__ == "__main__":
    print(json.dumps({change.name: found(change) for change in CHANGES if change.name in sys.argv[1:]}))
