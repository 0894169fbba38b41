"""Lists the files that name an epilogue part outside the part's own file; ``python -m tests.house.parts`` renews the
frozen list."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.house.kinds import ROOT, program, texts_of_python, words_of

#: For each part, the files other than its own that name it.
FROZEN = Path(__file__).with_name("parts_named.json")
#: For each part, what names it: consecutive words of an identifier or a literal.
_WORDS = {
    "block_scale": ("block scale", "block scales", "block scaled", "blockscale"),
    "bias": ("bias", "biases"),
    "gate": ("gate", "gated"),
    "group_scale": ("group scale", "group scales", "groupscale", "grouped tile"),
    "residual": ("residual", "residuals"),
    "rotary": ("rotary",),
    "row_scale": ("row scale",),
}
#: The part's own files: its file on the host, its files on the device and their list, and the kinds whose fields enable
#: it. Layers of models of vLLM and transformers have the same names, since they are replaced; a batch norm is folded
#: into a bias.
_OWN = re.compile(
    r"tuner/core/problem/(epilogue/|ops/rotary\.py)|tuner/ops/(conv|gemm)/|tuner/(runtime/models|vllm)/"
    r"|tuner/runtime/tensors/batch_norm\.py"
    r"|workers/kernels/epilogue/(bias|finish|gate|pages|residual|rotary|row_scale)"
)
_COMMENT = re.compile(r"//.*|\"[^\"\n]*\"")

Named = dict[str, list[str]]


def _texts_of(path: str, text: str) -> Iterator[str]:
    """Identifiers and literals; comments and docstrings are left out."""
    if path.endswith(".py"):
        return iter(texts_of_python(text))
    return iter(re.findall(r"[A-Za-z_]\w*", _COMMENT.sub("", text)))


def parts_of(path: str, text: str) -> set[str]:
    """The parts that a file names."""
    said = {f" {' '.join(words_of(one))} " for one in _texts_of(path, text)}
    return {part for part, forms in _WORDS.items() if any(f" {form} " in one for form in forms for one in said)}


def named_in(paths: Iterable[Path], root: Path = ROOT) -> Named:
    """For each part, the files that name it, except the part's own."""
    found: Named = {part: [] for part in _WORDS}
    for path in sorted(paths):
        place = path.relative_to(root).as_posix()
        for part in parts_of(place, path.read_text(encoding="utf-8")) if not _OWN.match(place) else ():
            found[part].append(place)
    return found


def sources() -> list[Path]:
    """All files of the wheel, and the device files."""
    kinds = (".cuh", ".cu", ".in")
    device = [path for room in ("workers", "tuner/ops") for path in (ROOT / room).rglob("*") if path.suffix in kinds]
    return [*program(), *device]


def frozen() -> Named:
    """The frozen list."""
    named: Named = json.loads(FROZEN.read_text(encoding="utf-8"))
    return named


def grown(found: Named, allowed: Named) -> list[str]:
    """Describes the files that name a part and are not on the list."""
    return [
        f"{place} names {part}: use the op's parts instead"
        for part, places in found.items()
        for place in places
        if place not in allowed[part]
    ]


def main() -> None:
    """Rewrites the list, unless more files name a part than before."""
    found, allowed = named_in(sources()), frozen() if FROZEN.exists() else {}
    for part, places in found.items():
        before = len(allowed.get(part, places))
        print(f"{part}: {before} -> {len(places)} files")
        if len(places) > before:
            raise SystemExit(f"more files than before name {part}:\n" + "\n".join(grown(found, allowed)))
    FROZEN.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
