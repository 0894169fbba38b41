"""The index's tables of attentions and layers, of versions 2 and 3: shapes, their tables, and what the C runtime does
for each artifact.

A record is a multiple of 8 bytes. Encoded tensor maps lie in the table of those of the kernels of FFNs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuner.core.problem.dtype import ELEMENTS

from .attention import AttentionEntry, AttentionRung, AttentionShape
from .contents import DTYPES, Kernel
from .layer import LayerEntry
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
#: Where in the parameter, which tensor: of `TENSORS`, or behind them an operand of a layer; the addend.
PATCH = struct.Struct("<IIQ")
#: As an attention up to its soft cap, its columns being those that leave; columns that come, products in front, all
#: products; first rung, number of rungs, its text, its ops' names with blanks between.
LAYER = struct.Struct("<9I2f7I")
#: Program, name, role, dtype, flags, rank; dims. In the order of programs, and of a program in that of patches.
OPERAND = struct.Struct("<6I4I")

#: In the order of their numbers.
OPERAND_FLAGS = {"is_paged": 1}
ATTENTION_FLAGS = {"heads_first": 1}
PART_FLAGS = {
    "needs_all_ctas": 1,
    "non_portable_cluster": 2,
    "cooperative": 16,
    "programmatic": 32,
    "cooperative_when_plain": 64,
    "tells_refused": 128,
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
        self.layers: list[bytes] = []
        self.operands: list[bytes] = []

    @property
    def tables(self) -> tuple[list[bytes], ...]:
        """In their order in the index."""
        of_attentions = (self.attentions, self.rungs, self.programs, self.fills, self.parts, self.patches)
        return (*of_attentions, self.layers, self.operands)

    def add_entry(self, entry: AttentionEntry, programs: Mapping[str, int]) -> None:
        """A shape with its table; `programs` are numbers of artifacts by digest."""
        shape, first = entry.shape, len(self.rungs)
        self._add_rungs(entry.rungs, programs)
        figures = _attention_figures(shape, shape.d_out)
        self.attentions.append(ATTENTION.pack(*figures, first, len(entry.rungs), self._text(str(shape))))

    def add_layer(self, entry: LayerEntry, programs: Mapping[str, int]) -> None:
        """A layer with its table; as `add_entry`."""
        shape, first = entry.shape, len(self.rungs)
        self._add_rungs(entry.rungs, programs)
        sizes = (shape.d_in, shape.num_in_front, len(shape.names) - 1)
        texts = (self._text(str(shape)), self._text(" ".join(shape.names)))
        figures = _attention_figures(shape.attention, shape.d_out)
        self.layers.append(LAYER.pack(*figures, *sizes, first, len(entry.rungs), *texts))

    def _add_rungs(self, rungs: Sequence[AttentionRung], programs: Mapping[str, int]) -> None:
        for rung in rungs:
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
        for operand in program.operands:
            flags = sum(flag for name, flag in OPERAND_FLAGS.items() if getattr(operand, name))
            texts = (self._text(operand.name), self._text(operand.role))
            dims = (*operand.shape, *[0] * (4 - len(operand.shape)))
            dtype = ELEMENTS[operand.dtype].number
            self.operands.append(OPERAND.pack(len(self.programs), *texts, dtype, flags, len(operand.shape), *dims))
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
            "tells_refused": part.tells_refused,
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
            self.patches.append(PATCH.pack(patch.offset, tensor_number(patch.tensor), patch.addend))
        for one in part.maps:
            self._add_map(one)


def tensor_number(tensor: str | int) -> int:
    """Of what a patch or a map names, in the index."""
    return TENSORS.index(tensor) if isinstance(tensor, str) else len(TENSORS) + tensor


def _attention_figures(shape: AttentionShape, columns: int) -> tuple[Any, ...]:
    """From the dtype to the soft cap; `columns` are those that leave."""
    flags = sum(flag for name, flag in ATTENTION_FLAGS.items() if getattr(shape, name))
    sizes = (shape.heads, shape.kv_heads, shape.head_dim, shape.new_tokens, shape.page_tokens)
    more = (flags, shape.window, columns, shape.scale, shape.soft_cap)
    return (DTYPES[shape.dtype], *sizes, *more)
