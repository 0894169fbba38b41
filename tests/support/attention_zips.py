"""Zips of attentions with forged cubins; everything but the machine code is real."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.attention_packs import make_attention
from tests.support.attentions import alone
from tests.support.conformance.attention import one_tile
from tests.support.conformance.schedules import wide
from tuner.core.problem.workload import Workload
from tuner.core.proof.verify import VerifiedPlan
from tuner.ops.attention.artifact import CacheKernel


@dataclass(frozen=True, kw_only=True)
class Zipped:
    """A zip, and what it was made from."""

    path: Path
    workload: Workload
    kernel: CacheKernel
    plans: tuple[VerifiedPlan, ...]


def zip_of(folder: Path, *, d_out: int | None = None, form: dict[str, Any] | None = None, **sizes: Any) -> Zipped:
    """An attention followed by a product of `d_out` columns."""
    first = alone(span_tokens=192, num_stages=4)
    schedule = first if d_out is None else one_tile(wide(((16, 64, 64),))).but(launch_ops=first.launch_ops)
    made = make_attention(d_out=d_out, form=form, schedule=schedule, **sizes)
    path = folder / "best.zip"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in made.kernel.files.items():
            archive.writestr(name, data)
    path.write_bytes(buffer.getvalue())
    return Zipped(path=path, workload=made.workload, kernel=made.attention, plans=made.plans)
