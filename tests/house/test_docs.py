"""The documents list every axis, word and state, and no link is broken."""

from __future__ import annotations

import dataclasses
import re
import shlex
from enum import StrEnum
from pathlib import Path

import click
import pytest

import tuner.cli
import tuner.client.cli
from tests.house import axes_page
from tests.support.lanes import soak_unless
from tests.support.spaces import space_of
from tuner.core.insight import derived_counters
from tuner.core.problem import objective
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule import ordering as schedule
from tuner.core.schedule.axis import axes_of
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import CacheHint, Engine, Epilogue, Tile, Tiling, Warpgroups
from tuner.core.trial import job, outcome, records, samples
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.cupti.metrics import BASE_SET

AXES = (Tile, Tiling, schedule.Raster, schedule.Interleave, schedule.Ordering)
#: Parts that the page describes by their own fields.
PARTS = {"tiling", "ordering"}


def enums_of(*modules: object) -> list[type[StrEnum]]:
    """Every StrEnum that one of the modules defines."""
    return [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, StrEnum) and value.__module__ == module.__name__  # type: ignore[attr-defined]
    ]


def table_rows(path: Path) -> list[list[str]]:
    """Cells of all table rows of a page."""
    lines = path.read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def code_words(cells: list[str]) -> set[str]:
    """The words in backticks."""
    return {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize("axis", AXES, ids=lambda axis: axis.__name__)
def test_every_field_of_a_schedule_has_a_row(axis: type, root: Path) -> None:
    rows = table_rows(root / "docs/schedule-space.md")
    named = {(word, row[1]) for row in rows if len(row) > 2 for word in code_words(row[:1])}
    missing = [name for name in axes_of(axis) if (name, axis.__name__.lower()) not in named]
    assert missing == []


def test_the_rows_of_axes_are_those_of_their_records() -> None:
    """`python -m tests.house.axes_page` writes them."""
    assert axes_page.drawn(axes_page.PAGE.read_text()) == axes_page.PAGE.read_text()


@pytest.mark.parametrize("enum", enums_of(schedule), ids=lambda enum: enum.__name__)
def test_every_value_of_an_axis_has_its_meaning(enum: type[StrEnum], root: Path) -> None:
    rows = table_rows(root / "docs/schedule-space.md")
    named = {word for row in rows for word in code_words(row)}
    assert {value.value for value in enum} - named == set()


def test_the_words_of_a_schedules_line_are_those_that_schedules_have(root: Path) -> None:
    section = (root / "docs/schedule-space.md").read_text().split("## A schedule's one line")[1].split("\n## ")[0]
    tiles = (Tile(m=64, n=112, k=128), Tile(m=64, n=128, k=64))
    tiling = Tiling(
        engine=Engine.WGMMA, tiles=tiles, num_stages=6, input_stages=4, window=3, num_warps=4, split_k=(1, 2)
    )
    ordering = schedule.Ordering(
        rasters=(schedule.Raster(), schedule.Raster(kind=schedule.RasterKind.COLUMN)),
        split_order=schedule.SplitOrder.STRIDED,
        granularity=schedule.Granularity.CHUNK,
        sync_width=4,
        wait_position=schedule.WaitPosition.SLICE,
        run_ahead=25,
        assignment=schedule.Assignment.STATIC,
        partition=4,
        reserved_sms=4,
    )
    line = str(Schedule.of(tiling, ordering))
    assert f"\n```\n{line}\n```\n" in section
    bands = schedule.Interleave(kind=schedule.InterleaveKind.BANDS, rows=2, lag=1, chunks=3)
    others = [
        dataclasses.replace(tiling, num_warps=8, warpgroups=Warpgroups.PING_PONG, cluster_m=2, resident_ctas=2),
        dataclasses.replace(tiling, epilogue=Epilogue.TMA, weight_hint=CacheHint.NORMAL, swap_ab=True),
        dataclasses.replace(
            tiling, intermediate_hint=CacheHint.EVICT_LAST, startup_prefetch=4, ahead_window=2, in_band=True
        ),
        dataclasses.replace(ordering, interleave=bands, part_major=True, split_tiles=schedule.SplitTiles.TAIL),
        dataclasses.replace(ordering, split_tiles=schedule.SplitTiles.TAILS),
        dataclasses.replace(ordering, split_tiles=schedule.SplitTiles.STREAM),
    ]
    words = code_words(re.findall(r"^\| ([^|]*) \|", section, flags=re.MULTILINE))
    assert len(words) > 20
    assert [word for word in words if word not in " ".join(map(str, (line, *others)))] == []


def test_every_plan_kind_has_its_row_and_is_in_the_glossary(root: Path) -> None:
    rows = {word for row in table_rows(root / "docs/schedule-space.md") for word in code_words(row[:1])}
    assert {str(kind) for kind in PlanKind} - rows == set()
    glossary = (row for row in table_rows(root / "docs/glossary.md") if row[0] == "plan kind")
    assert code_words(next(glossary)) == {str(kind) for kind in PlanKind}


@pytest.mark.parametrize("enum", enums_of(job, outcome, objective, records, samples), ids=lambda enum: enum.__name__)
def test_every_state_and_answer_is_in_a_document(enum: type[StrEnum], root: Path) -> None:
    pages = ("glossary.md", "measuring.md", "schedule-space.md")
    named = set(re.findall(r"`([^`]+)`", " ".join((root / "docs" / page).read_text() for page in pages)))
    assert {value.value for value in enum} - named == set()


def test_every_metric_of_the_base_set_and_every_derived_figure_is_explained(root: Path) -> None:
    words = {word for row in table_rows(root / "docs/measuring.md") for word in code_words(row)}
    stalls = {f"smsp__warp_issue_stalled_{word}_per_warp_active.pct" for word in words}
    assert {*BASE_SET, *derived_counters.DERIVED} - words - stalls == set()


def test_the_glossary_has_each_term_once_and_in_order(root: Path) -> None:
    text = (root / "docs/glossary.md").read_text().split("\n## ")[0]
    terms = [line.split("|")[1].strip().lower() for line in text.splitlines() if re.match(r"\| [^-|]", line)][1:]
    assert len(terms) > 40
    assert terms == sorted(set(terms))


def pages(root: Path) -> list[Path]:
    return [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").rglob("*.md"))]


def anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as a Git forge generates them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_somewhere(root: Path) -> None:
    dead = []
    for page in pages(root):
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or (anchor and anchor not in anchors(file)):
                dead.append(f"{page.relative_to(root)}: {target}")
    assert dead == []


def test_every_page_that_code_names_is_there(repository_files: list[Path], root: Path) -> None:
    code = [path for path in repository_files if path.suffix in (".py", ".cu", ".cuh", ".h", ".c", ".cpp")]
    named = {name for path in code for name in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text())}
    assert named
    assert [name for name in sorted(named) if not (root / name).is_file()] == []


def test_every_page_is_reached_from_the_readme(root: Path) -> None:
    seen, to_read = set[Path](), [root / "README.md"]
    while to_read:
        page = to_read.pop()
        if page in seen:
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)#\s]+\.md)", page.read_text())
        to_read += [file for link in links if (file := (page.parent / link).resolve()).exists()]
    assert set(pages(root)) - seen == set()


def test_every_decision_says_why_what_follows_and_how_it_is_checked(root: Path) -> None:
    for record in (root / "docs/adr").glob("0*.md"):
        text = record.read_text()
        for heading in ("Context", "Decision", "Consequence", "How it is checked"):
            assert f"**{heading}.**" in text, f"{record.name}: {heading}"


def test_every_named_test_folder_and_program_exists(root: Path) -> None:
    named = {
        (page.name, name)
        for page in pages(root)
        if page.name != "CHANGELOG.md"  # it names the files that existed at the time
        for name in re.findall(r"`((?:tests|benchmarks|tuner|workers|examples)/[\w/]*(?:\.\w+)?)`", page.read_text())
    }
    assert [f"{page}: {name}" for page, name in sorted(named) if not (root / name).exists()] == []


def test_every_make_target_that_the_pages_name_exists(root: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (root / "Makefile").read_text(), flags=re.MULTILINE))
    read = (page for page in pages(root) if page.name != "CHANGELOG.md")  # which names the files of its time
    named = {word for page in read for word in re.findall(r"`make ([a-z-]+)", page.read_text())}
    assert named - targets == set()
    assert {"demo", "test", "serve", "check"} <= named


def test_every_command_line_of_the_readme_is_one_that_the_programs_understand(root: Path) -> None:
    lines = re.findall(r"^(tuner(?:-client)?) ([^\n#]*)", (root / "README.md").read_text(), flags=re.MULTILINE)
    assert len(lines) >= 3
    for program, line in lines:
        command: click.Command = {"tuner": tuner.cli.main, "tuner-client": tuner.client.cli.main}[program]
        words = shlex.split(line)
        while isinstance(command, click.Group) and not words[0].startswith("-"):
            inner = command.get_command(click.Context(command), words.pop(0))
            assert inner is not None, line
            command = inner
        command.make_context(line, words)


# In CI, tests/unit/core/space counts a smaller space.
@pytest.mark.soak
@pytest.mark.parametrize("m", soak_unless(lambda _, m: m == 16, [16, 512]))
def test_the_size_of_the_space_is_the_one_that_is_written(m: int, root: Path) -> None:
    space = space_of(ffn_pair(m=m, d_in=4096, d_hidden=14336, d_out=4096), CATALOGUE["h200"])
    text = (root / "docs/schedule-space.md").read_text()
    written = re.findall(r"[\d,]*\d", text)
    assert f"{len(space.tilings):,}" in written
    assert f"{space.num_schedules:,}" in written


def test_every_room_is_on_the_page_of_the_architecture(root: Path) -> None:
    named = {word for row in table_rows(root / "docs/architecture.md") for word in code_words(row[:1])}
    rooms = {
        f"{house}/{path.name}"
        for house in ("tuner/core", "workers", "benchmarks")
        for path in (root / house).iterdir()
        if path.is_dir() and path.name != "__pycache__"
    }
    assert rooms - named == set()


def test_every_folder_of_the_kernel_is_in_its_table_and_every_file_begins_with_what_it_does(root: Path) -> None:
    kernels, ops = root / "workers/kernels", root / "tuner/ops"
    files = [path for path in (*kernels.rglob("*"), *ops.glob("*/device/*")) if path.suffix in (".cu", ".cuh")]
    folders = {str(path.parent.relative_to(ops if path.is_relative_to(ops) else kernels)) for path in files}
    assert {word for row in table_rows(root / "docs/kernel.md") for word in code_words(row[:1])} == folders
    assert [path.name for path in files if not re.match(r"(//|/\*) ?\w", path.read_text())] == []


def test_every_lane_of_the_tests_is_in_the_developers_table(root: Path) -> None:
    lanes = {f"tests/{path.parent.name}" for path in (root / "tests").glob("*/test_*.py")}
    named = {word for row in table_rows(root / "docs/development.md") for word in code_words(row[:1])}
    assert lanes - named == set()


def test_every_action_of_the_audit_log_is_on_its_page(root: Path) -> None:
    sources = "".join(path.read_text() for path in (root / "tuner").rglob("*.py") if "workers" not in path.parts)
    actions = set(re.findall(r'audit\.append\([^"]*?"([a-z]+\.[a-z]+)"', sources))
    assert len(actions) > 10
    section = (root / "docs/access.md").read_text().split("## The audit log")[1].split("\n## ")[0]
    assert actions <= code_words([section])
