"""Values known only at a launch: the layout of its caches' pages, and which length or page was invalid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.runtime.binding.native import WrongOperand
from tuner.runtime.device.driver import Driver
from tuner.runtime.tensors.arrays import View

#: A launch's record of what it refused: four words, of which the first is the reason.
REFUSED_BYTES, _REFUSALS = 16, {1: "length", 2: "page"}
#: A kernel counts pages in a signed word.
_MOST_PAGES = 2**31 - 1
#: Elements of a line that the copy engine loads at once, and their bytes.
_BOX_DIMS, _BOX_BYTES = 64, 128

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Pages:
    """The pages of a launch's caches. A line holds the elements of one head of one token."""

    #: Pages of the cache.
    count: int
    #: Elements of a line; and from one line to the next, which may have gaps.
    head_dim: int
    line: int
    #: Lines of a page; and from one page to the next.
    num_lines: int
    step_lines: int
    #: Numbers in a row of the table.
    width: int

    @property
    def is_dense(self) -> bool:
        """Whether no line, and no page, has a gap."""
        return self.line == self.head_dim and self.step_lines == self.num_lines

    def of_writer(self, parameter: Json) -> dict[str, int]:
        """The parameter fields of a kernel that writes to them, from a manifest.

        Raises:
            WrongOperand: the kernel was built before lines could have gaps, and these have some.
        """
        section, values = (
            parameter["pages"],
            {one["name"]: one["value"] for one in parameter["fields"] if "value" in one},
        )
        names = {name: section.get(f"{name}_field", "") for name in ("line", "page_lines", "max_pages", "max_length")}
        if not names["line"]:
            writer, _, _ = section["num_pages_field"].rpartition(".")
            if not self.is_dense or self.width != values[f"{writer}.max_pages"]:
                raise _made_before(section["caches"])
            return {section["num_pages_field"]: self.count}
        longest = min(values[names["max_length"]], self.width * section["page_tokens"])
        given = {"line": self.line, "page_lines": self.step_lines, "max_pages": self.width, "max_length": longest}
        return {section["num_pages_field"]: self.count, **{names[name]: value for name, value in given.items()}}

    def of_reader(self, recipe: Json) -> tuple[dict[str, int], dict[str, dict[str, Any]]]:
        """The fields of a launch that reads them, and its tensor maps by name.

        Raises:
            WrongOperand: it has no such fields, so it reads lines without gaps, and these have some.
        """
        values = {one["name"]: one["value"] for one in recipe["parameter"]["fields"] if "value" in one}
        is_by_heads, tokens = values["lines_per_head"] == 0, recipe["pages"]["page_tokens"]
        heads = 1 if is_by_heads else values["kv_heads"]
        if self.line != self.head_dim and not recipe["tensor_maps"]:
            problem = f"{recipe['op']} has lines of {self.head_dim} elements, {self.line} from one to the next"
            raise WrongOperand(f"{problem}, but its kernel reads lines without gaps: tune it with the engine `tma`")
        if self.line % _BOX_DIMS or self.step_lines % heads:
            raise WrongOperand(
                f"{recipe['op']}'s lines are {self.line} elements apart, and its pages {self.step_lines} lines: use "
                f"multiples of {_BOX_DIMS} and {heads}"
            )
        rows = self.step_lines // heads
        found = {
            "num_pages": self.count,
            "rows_per_page": rows,
            "lines_per_head": 0 if is_by_heads else self.line // _BOX_DIMS,
            "max_pages": self.width,
            "max_length": min(values["max_length"], self.width * tokens),
        }
        lines = (heads - 1) * (self.line // _BOX_DIMS) + self.head_dim // _BOX_DIMS
        size = _BOX_BYTES // _BOX_DIMS
        of_rows = {
            "dims": [_BOX_DIMS, self.count * rows, lines],
            "strides_bytes": [heads * self.line * size, _BOX_BYTES],
        }
        return found, {one["name"]: {**one, **of_rows} for one in recipe["tensor_maps"]}


def pages_of(caches: Sequence[str], views: Mapping[str, View], table: str) -> Pages:
    """The pages of all these caches, which this table assigns to sequences.

    Raises:
        WrongOperand: their numbers of pages differ, are 0 or too large for the kernel, or their layouts differ.
    """
    found = {(view.shape, view.steps) for view in (views[name] for name in caches)}
    names = " and ".join(caches)
    if len(counts := {shape[0] for shape, _ in found}) > 1:
        raise WrongOperand(f"{names} have {sorted(counts)} pages: use the same number for both")
    if len(found) > 1:
        raise WrongOperand(f"{names} have different strides: use the same for both")
    ((shape, steps),) = found
    count, *middle, head_dim = shape
    if not 1 <= count <= _MOST_PAGES:
        raise WrongOperand(f"{names} have {count} pages: use 1 to {_MOST_PAGES}")
    lines, line = math.prod(middle), steps[-2] if steps else head_dim
    step_lines = steps[0] // line if steps and count > 1 else lines
    width = views[table].shape[1]
    if width < 1:
        raise WrongOperand(f"{table} has rows without page numbers: pass at least 1")
    return Pages(count=count, head_dim=head_dim, line=line, num_lines=lines, step_lines=step_lines, width=width)


def _made_before(caches: Sequence[str]) -> WrongOperand:
    problem = f"{' and '.join(caches)} have gaps, or their table rows have another width than was tuned"
    return WrongOperand(f"{problem}, but this kernel is too old to support that: tune it again")


def refusal(cuda: Driver, at: int) -> str:
    """A launch's record of invalid input, as a sentence; empty if there is none."""
    kind, sequence, value, end = (cuda.word(at + 4 * index) for index in range(4))
    signed = value - (1 << 32) if value >> 31 else value
    return f"sequence {sequence} has the {_REFUSALS[kind]} {signed}: use 0 to {end - 1}" if kind else ""
