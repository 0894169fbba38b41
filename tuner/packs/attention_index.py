"""The index's tables of attentions, of version 2: shapes, their tables, and what the C runtime does for each artifact.

A record is a multiple of 8 bytes. Encoded tensor maps lie in the table of those of the kernels of FFNs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from .attention import AttentionEntry
from .contents import DTYPES, Kernel
from .programs import TENSORS, MapPatch, Part, Program, parameter_name

#: dtype, heads, heads of the cache, elements of a head, new tokens, page tokens, flags, window, columns of the
#: projection; scale and soft cap as float32; first rung, number of rungs, its text.
ATTENTION = struct.Struct("<9I2f3I")
#: Sequences, longest context, choice, program, speed-up and interval in millionths, library's text.
ATTENTION_RUNG = struct.Struct("<8I")
#: digest; text; major, minor, suffix; SMs, the driver's CUDA version; flags; first and number of fills and parts, 0;
#: bytes of the memory; where in it the words of what was refused lie.
PROGRAM = struct.Struct("<32s12IQQ")
#: Where in the memory, zeros; then the blob of what lies there where it is no zeros.
FILL = struct.Struct("<QQ")
#: symbol, grid, threads, cluster, shared memory, flags, where the parameter says whether it is programmatic or NONE,
#: bytes of the parameter, first and number of patches and maps; where in the memory an abort's words lie or all ones;
#: then the blobs of the cubin and of the parameter.
PART = struct.Struct("<12IQ")
#: Where in the parameter, which tensor; the addend.
PATCH = struct.Struct("<IIQ")

ATTENTION_FLAGS = {"heads_first": 1}
PART_FLAGS = {
    "needs_all_ctas": 1,
    "non_portable_cluster": 2,
    "cooperative": 16,
    "programmatic": 32,
    "cooperative_when_plain": 64,
}
NOWHERE = 2**64 - 1


class AttentionTables:
    """The records, table by table."""

    def __init__(
        self,
        *,
        text: Callable[[str], int],
        blob: Callable[[Kernel, str | None], bytes],
        add_map: Callable[[MapPatch], None],
        num_maps: Callable[[], int],
        target: Callable[[Mapping[str, Any]], tuple[int, ...]],
        choices: Mapping[str, int],
        none: int,
    ) -> None:
        """What the whole index has: its texts, blobs of files, tensor maps, and what it says of a card."""
        self._text, self._blob, self._add_map, self._num_maps = text, blob, add_map, num_maps
        self._target, self._choices, self._none = target, choices, none
        self.attentions: list[bytes] = []
        self.rungs: list[bytes] = []
        self.programs: list[bytes] = []
        self.fills: list[bytes] = []
        self.parts: list[bytes] = []
        self.patches: list[bytes] = []

    @property
    def tables(self) -> tuple[list[bytes], ...]:
        """In their order in the index."""
        return (self.attentions, self.rungs, self.programs, self.fills, self.parts, self.patches)

    def add_entry(self, entry: AttentionEntry, programs: Mapping[str, int]) -> None:
        """A shape with its table; `programs` are numbers of artifacts by digest."""
        shape = entry.shape
        flags = sum(flag for name, flag in ATTENTION_FLAGS.items() if getattr(shape, name))
        sizes = (shape.heads, shape.kv_heads, shape.head_dim, shape.new_tokens, shape.page_tokens)
        more = (flags, shape.window, shape.d_out, shape.scale, shape.soft_cap)
        rungs = (len(self.rungs), len(entry.rungs), self._text(str(shape)))
        self.attentions.append(ATTENTION.pack(DTYPES.index(shape.dtype), *sizes, *more, *rungs))
        for rung in entry.rungs:
            choice = self._choices["library" if rung.kernel is None else "kernel"]
            program = self._none if rung.kernel is None else programs[rung.kernel.digest]
            figures = (rung.speedup or 0.0, *(rung.interval or (0.0, 0.0)))
            millionths = (min(round(figure * 1_000_000), self._none) for figure in figures)
            library = self._text(", ".join(f"{key} {value}" for key, value in sorted(rung.library.items())))
            self.rungs.append(
                ATTENTION_RUNG.pack(rung.sequences, rung.max_length, choice, program, *millionths, library)
            )

    def add_program(self, program: Program) -> None:
        """An artifact's launches."""
        kernel, manifest = program.kernel, program.kernel.manifest
        head = PROGRAM.pack(
            bytes.fromhex(kernel.digest),
            self._text(f"{manifest['plan_kind']}: {manifest['schedule_in_words']}"),
            *self._target(program.parts[0].kernel),
            int(kernel.simulated),
            len(self.fills),
            len(program.fills),
            len(self.parts),
            len(program.parts),
            0,
            program.memory_bytes,
            program.refused_offset,
        )
        self.programs.append(head)
        for fill in program.fills:
            self.fills.append(FILL.pack(fill.offset, fill.num_zeros) + self._blob(kernel, fill.name or None))
        for number, part in enumerate(program.parts):
            self._add_part(kernel, number, part)

    def _add_part(self, kernel: Kernel, number: int, part: Part) -> None:
        recipe = part.recipe
        flags = {
            "needs_all_ctas": recipe["needs_all_ctas"],
            "non_portable_cluster": recipe.get("allows_non_portable_cluster", False),
            "cooperative": recipe["cooperative"],
            "programmatic": recipe["programmatic_dependent_launch"],
            "cooperative_when_plain": recipe.get("plain", recipe)["cooperative"],
        }
        head = PART.pack(
            self._text(part.kernel["name"]),
            recipe["grid"][0],
            recipe["block"][0],
            recipe["cluster"][0],
            recipe["dynamic_smem_bytes"],
            sum(PART_FLAGS[name] for name, is_on in flags.items() if is_on),
            self._none if part.dependent_offset is None else part.dependent_offset,
            len(part.parameter),
            len(self.patches),
            len(part.patches),
            self._num_maps(),
            len(part.maps),
            NOWHERE if part.abort_offset is None else part.abort_offset,
        )
        cubin = part.kernel["cubin"]
        self.parts.append(head + self._blob(kernel, cubin) + self._blob(kernel, parameter_name(number)))
        for patch in part.patches:
            self.patches.append(PATCH.pack(patch.offset, TENSORS.index(patch.tensor), patch.addend))
        for one in part.maps:
            self._add_map(one)
