"""The records of `pack.bin`, the index of a pack, which the C runtime reads.

All numbers are little-endian. A record is a multiple of 8 bytes, and the tables follow each other without a gap. A
`file` offset counts from the first byte of the pack. A text is an offset into the strings, which end with 0.
"""

from __future__ import annotations

import struct

MAGIC = b"TUNRPACK"
#: It is increased when a record changes. A pack has the lowest version that supports its contents, in exactly that
#: version's format.
VERSION_OF_SECTION = {"shapes": 1, "attentions": 2, "layers": 3, "chains": 4}
#: The version with rows that are followed by a fallback, for cards with fewer clusters.
FALLBACK_VERSION = 5
#: The version with weights in fewer bits, whose bytes it describes.
WEIGHTS_VERSION = 6
VERSION, FIRST_VERSION = WEIGHTS_VERSION, 1
NONE = 0xFFFFFFFF
PPM, NOWHERE = 1_000_000, 2**64 - 1

#: magic, version, bytes of the header and of the index, where the index is in the file, flags, counts of shapes, rungs,
#: kernels, launches, ops and maps, bytes of strings; sha256 of the index with zeros in its place; counts of attentions,
#: their rungs and those of layers, programs, fills, parts, patches, layers and operands.
HEADER = struct.Struct("<8sIIQQIIIIIIII32s8I")
#: After the header, if the pack's version has weights: their number, and a zero.
MORE_COUNTS = struct.Struct("<2I")
DIGEST_OFFSET = 64
#: dtype, activation, flags, d_in, d_hidden, d_out, first rung, number of rungs, its text, 0.
SHAPE = struct.Struct("<10I")
#: Minimum and maximum rows, choice, kernel, speed-up and interval in millionths (0: not measured), library's text,
#: zeros.
RUNG = struct.Struct("<10I")
#: A part of the file: offset, bytes, sha256.
BLOB = struct.Struct("<QQ32s")
#: digest; spin limit; text, symbols of the kernel and of the start gate; major, minor, suffix; SMs, the driver's CUDA
#: version; threads, cluster, shared memory, parameter's bytes, where first tasks and maps are in it; least and most
#: rows; first and number of launches, ops and maps; workspaces; flags; then a blob for each variant.
KERNEL = struct.Struct("<32sq24I")
#: grid, flags, CTAs that the start gate waits for, workspace; its bytes, those to zero; then the blobs of the plan's
#: words and of the first tasks.
LAUNCH = struct.Struct("<IIIIQQ")
#: n, k, rows of the weights, flags, activation, the op that it reads or NONE, text, 0.
OP = struct.Struct("<8I")
#: op, operand, rank, data type, the dimension that is rows or NONE, 0; dims; strides; box, 0. For an attention's part:
#: tensor, offset in the parameter, rank, data type, the dimension that is rows of pages or NONE, rows of a page; then
#: the same, except that the last number is the offset of its tensor in the memory, in units of 256 bytes. If a page has
#: no rows, the dimension is the rows of the launch. In im2col mode, `IM2COL` is added to the rank, and the box is
#: channels, pixels, the lower and the upper corner, both signed, and the stride: an older loader refuses the rank.
MAP = struct.Struct("<6I5Q4Q6I")
IM2COL = 256

#: What a patch or a map of a program refers to, by its number: an attention's seven tensors, the memory, and the number
#: of pages. These are followed by a program's operands, by index, and then the number of rows.
TENSORS = ("q", "keys", "values", "lengths", "pages", "w", "y", "memory", "num_pages")
MAX_OPERANDS = 64
ROWS = len(TENSORS) + MAX_OPERANDS

CHOICES = {"kernel": 1, "library": 2}
SHAPE_FLAGS = {"gated": 1, "bias": 2, "residual": 4, "row_scale": 8}
#: The fallback of a kernel or a program is the row after it: of the same artifact, with the launches for cards on which
#: those of the first do not fit.
KERNEL_FLAGS = {"simulated": 1, "programmatic": 2, "paired": 4, "has_fallback": 8}
PROGRAM_FLAGS = {"simulated": 1, "has_fallback": 2}
LAUNCH_FLAGS = {
    "needs_all_ctas": 1,
    "reads_weights_before_wait": 2,
    "is_second": 4,
    "side_stream": 8,
    "cooperative": 16,
    "programmatic": 32,
    "cooperative_when_plain": 64,
}
OPERANDS = ("a", "w", "c")
#: Builds of a kernel in the order of their blobs.
VARIANTS = ("measured", "guarded", "safe")
#: Sequences and longest context, or for a chain minimum and maximum rows; choice, program, speed-up and interval in
#: millionths, library's text.
PROGRAM_RUNG = struct.Struct("<8I")
#: digest; text; major, minor, suffix; SMs, the driver's CUDA version; flags; first and number of fills and parts, a
#: chain's maximum rows; bytes of the memory; offset in it of the words about refused input.
PROGRAM = struct.Struct("<32s12IQQ")
#: Offset in the memory, zeros; then the blob of its contents unless it is zeros.
FILL = struct.Struct("<QQ")
#: symbol, grid, threads, cluster, shared memory, flags, offset in the parameter of the word that tells whether it is
#: programmatic or NONE, bytes of the parameter, first and number of patches and maps; offset in the memory of an
#: abort's words or all ones; then the blobs of the cubin and of the parameter.
PART = struct.Struct("<12IQ")
#: Offset in the parameter; the tensor: an index in `TENSORS`, above these the index of an operand, or `ROWS`; the
#: addend.
PATCH = struct.Struct("<IIQ")
#: Same as for an attention up to its soft cap, with its output columns; input columns, products before it, all
#: products; first rung, number of rungs, its text, its ops' names separated by blanks. A chain has no heads.
LAYER = struct.Struct("<9I2f7I")
#: Program, name, role, dtype, flags, rank; dims. In the order of programs, and for a program in that of patches.
OPERAND = struct.Struct("<6I4I")
#: For an operand whose bytes are weights in fewer bits: its number, texts of its format, its layout and the element
#: type of factors; bits per code, weights per row, weights that share a factor, whether each group has a zero point. In
#: the order of operands; the last table before the strings.
WEIGHTS = struct.Struct("<8I")

OPERAND_FLAGS = {"is_paged": 1, "has_rows": 2}
PART_FLAGS = {
    "needs_all_ctas": 1,
    "non_portable_cluster": 2,
    "cooperative": 16,
    "programmatic": 32,
    "cooperative_when_plain": 64,
    "tells_refused": 128,
}


def tensor_number(tensor: str | int) -> int:
    """The number in the index of what a patch or a map refers to."""
    if tensor == "rows":
        return ROWS
    return TENSORS.index(tensor) if isinstance(tensor, str) else len(TENSORS) + tensor
