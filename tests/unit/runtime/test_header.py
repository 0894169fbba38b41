"""The ctypes declarations have the sizes and offsets of `tuner.h` in a C compiler."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tuner.runtime.binding import native

STRUCTS = [one for one in vars(native).values() if isinstance(one, type) and issubclass(one, ctypes.Structure)]
HEADER = native.FOLDER / "include" / "tuner" / "tuner.h"


def c_name(struct: type[ctypes.Structure]) -> str:
    return "tuner_" + re.sub(r"(?<!^)([A-Z])", r"_\1", struct.__name__).lower()


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_structs_and_constants_are_those_of_the_compiler(tmp_path: Path) -> None:
    said = [f'printf("%s %zu\\n", "{c_name(one)}", sizeof({c_name(one)}));' for one in STRUCTS]
    said += [
        f'printf("%s.%s %zu\\n", "{c_name(one)}", "{name}", offsetof({c_name(one)}, {name}));'
        for one in STRUCTS
        for name, *_ in one._fields_
    ]
    said += [f'printf("%s %d\\n", "{name}", {name});' for name in native.HEADER.constants]
    program = (
        f"#include <stddef.h>\n#include <stdio.h>\n#include <tuner/tuner.h>\nint main(void) {{ {' '.join(said)} }}"
    )
    (tmp_path / "said.c").write_text(program)
    build = ["cc", "-std=c11", f"-I{HEADER.parents[1]}", str(tmp_path / "said.c"), "-o", str(tmp_path / "said")]
    subprocess.run(build, check=True)
    found = subprocess.run([tmp_path / "said"], check=True, capture_output=True, text=True).stdout.split("\n")[:-1]
    wanted = [f"{c_name(one)} {ctypes.sizeof(one)}" for one in STRUCTS]
    wanted += [f"{c_name(one)}.{name} {getattr(one, name).offset}" for one in STRUCTS for name, *_ in one._fields_]
    wanted += [f"{name} {value}" for name, value in native.HEADER.constants.items()]
    assert found == wanted


def test_every_struct_and_every_function_of_the_header_is_known() -> None:
    text = re.sub(r"/\*.*?\*/", " ", HEADER.read_text(), flags=re.DOTALL)
    assert {c_name(one) for one in STRUCTS} == set(re.findall(r"typedef struct (\w+) \{", text))
    library = native.library()
    functions = re.findall(r"\b(tuner_\w+)\(([^)]*)\);", text)
    assert len(functions) > 25
    for name, parameters in functions:
        count = 0 if parameters == "void" else parameters.count(",") + 1
        assert len(getattr(library, name).argtypes) == count, name
