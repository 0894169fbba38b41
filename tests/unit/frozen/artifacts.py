"""Artifacts of every manifest format, packs of every index version, a lock and winners, as written at the time.

python -m tests.unit.frozen.artifacts    writes those of a format or a version that has none yet. Format 1 is from the
last commit before the start gate was renamed. Cubins are forged, and sources are empty.
"""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.attention_packs import MadeAttention, made_of, make_attention, table, without_sources
from tests.support.between import between
from tests.support.between_made import candidate_of
from tests.support.converted import TILINGS, pair
from tests.support.packs import WIDE, WIDE_MLP, Made, ladder, make, make_for_both, mlp, without_source
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.packs.contents import Entry
from tuner.packs.write import pack_bytes

FOLDER = Path(__file__).parent / "files"


def _layer(**pages: Any) -> MadeAttention:
    workload = between(pages=pages)
    return made_of(workload, candidate_of(workload))


#: By the manifest's format: what writes such an artifact today.
ARTIFACTS: dict[int, Callable[[], Made | MadeAttention]] = {
    2: lambda: make(PlanKind.FUSED_PDL),
    3: lambda: make_attention(d_out=520, next_percent=50),
    4: _layer,
    5: lambda: _layer(page_tokens=16),
}


def _products() -> list[Entry]:
    """A ladder of one kernel."""
    kernel = without_source(make(PlanKind.FUSED_PDL).kernel)
    return [ladder(kernel)]


def _attentions() -> list[Entry]:
    return [without_sources(table(make_attention(d_out=520, next_percent=50), library=[(4, 9000)]))]


def _layers() -> list[Entry]:
    return [without_sources(table(_layer(), library=[(4, 9000)]))]


def _chains() -> list[Entry]:
    return [ladder(without_source(make(PlanKind.FUSED_PDL, workload=mlp()).kernel))]


def _fallbacks() -> list[Entry]:
    """A ladder made on a GPU that holds more clusters than others of its model."""
    return [ladder(without_source(make_for_both(PlanKind.FUSED_PDL, one).kernel)) for one in (WIDE, WIDE_MLP)]


def _converted() -> list[Entry]:
    """Weights of 4 bits with zero points, and of 8."""
    made = [make(PlanKind.FUSED_PDL, TILINGS[name][1], workload=pair(TILINGS[name][0])) for name in _CONVERTED]
    return [ladder(without_source(one.kernel)) for one in made]


_CONVERTED = ("int4, zero points", "e4m3")


#: By the version of the index: what a pack of that version contains today.
PACKS: dict[int, Callable[[], list[Entry]]] = {
    1: _products,
    2: lambda: [*_products(), *_attentions()],
    3: lambda: [*_products(), *_attentions(), *_layers()],
    4: lambda: [*_products(), *_attentions(), *_layers(), *_chains()],
    5: lambda: [*_fallbacks(), *_attentions(), *_layers()],
    6: lambda: [*_products(), *_attentions(), *_layers(), *_converted()],
}


def artifact_path(number: int) -> Path:
    """The path of the artifact of format `number`."""
    return FOLDER / f"format{number}.zip"


def pack_path(version: int) -> Path:
    """The path of the pack with an index of `version`."""
    return FOLDER / f"index{version}.tunerpack.gz"


def files_of(made: Made | MadeAttention) -> dict[str, bytes]:
    """The contents of an artifact's zip."""
    return dict(without_source(made.kernel).files)


def read_zip(content: bytes) -> dict[str, bytes]:
    """The files of a zip."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def read_pack_file(version: int) -> bytes:
    """The bytes of a frozen pack."""
    return gzip.decompress(pack_path(version).read_bytes())


def _write_zip(path: Path, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, 9)


def main() -> None:
    """Writes the missing files."""
    FOLDER.mkdir(exist_ok=True)
    for number, made in ARTIFACTS.items():
        if not artifact_path(number).exists():
            _write_zip(artifact_path(number), files_of(made()))
    for version, pack in PACKS.items():
        if not pack_path(version).exists():
            pack_path(version).write_bytes(gzip.compress(pack_bytes(pack()), mtime=0))


if __name__ == "__main__":
    main()
