"""The page on writing an op kind quotes the files of a toy exactly."""

from __future__ import annotations

import re

from tests.support.repository import ROOT
from tests.support.toys import TOYS

_FILE = re.compile(r"^`([\w./]+)`\n\n```\w+\n(.*?)\n```$", re.DOTALL | re.MULTILINE)


def test_the_page_has_every_file_of_the_package_as_it_is() -> None:
    shown = dict(_FILE.findall((ROOT / "docs/extending.md").read_text(encoding="utf-8")))
    assert shown.pop("chain.json")
    files = [path for path in (TOYS / "clamp").rglob("*") if path.suffix in (".py", ".toml")]
    assert shown == {str(path.relative_to(TOYS / "clamp")): path.read_text().rstrip() for path in files}
