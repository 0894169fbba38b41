"""The source of the measuring protocol's kernels."""

from __future__ import annotations

from string import Template

from tuner.core.problem.epilogue.added import AddedPart, added_parts
from tuner.core.problem.workload import Activation, Dtype

from .render import config_types, device_text, inlined
from .rows import activate_by_number, element_of


def tools_source(arch: str) -> str:
    """Kernels without an element type, and those of `kernel_of` for each type that the architecture, like ``sm_90``,
    has instructions for."""
    capability = divmod(int(arch.removeprefix("sm_").rstrip("af")), 10)
    of_elements = (_named(dtype) for dtype in Dtype if dtype.row.compute_capability <= capability)
    files = [inlined("ptx.cuh"), inlined("logistic.cuh"), activate_by_number([one.row for one in Activation])]
    return "\n".join([config_types(), *files, device_text("tools.cu"), *of_elements])


def kernel_of(name: str, dtype: Dtype) -> str:
    """The name of a kernel of tools_of_elements.cu for an element type."""
    return f"{name}_{dtype}"


def _of_part(part: type[AddedPart]) -> str:
    """The kernel of a package's part; its parameters are the members of the part's struct."""
    types = [*part.number_types().values(), *part.pointer_types().values()]
    names = [f"given{i}" for i in range(len(types))]  # a package's own names may equal those of the kernel
    return Template(device_text("tools_of_part.in")).substitute(
        name=part.name,
        text=part.text(),
        struct=part.__name__,
        parameters="".join(f", {of} {name}" for of, name in zip(types, names, strict=True)),
        members=", ".join([*names, *(["static_cast<int>(columns)"] if part.writes() else [])]),
    )


def _named(dtype: Dtype) -> str:
    text = element_of(dtype.row) + device_text("tools_of_elements.cu") + "".join(map(_of_part, added_parts().values()))
    if dtype.sums is not dtype:
        text += element_of(dtype.sums.row, "Sum") + device_text("tools_of_scaled.cu")
    macro = f"#define TUNER_KERNEL(name) {kernel_of('name##', dtype)}"
    return f"namespace of_{dtype} {{\n{macro}\n{text}#undef TUNER_KERNEL\n}}\n"
