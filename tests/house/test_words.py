"""No term of the glossary has two meanings, and replaced words do not come back."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

#: The sign of a second meaning.
SECOND_MEANING = re.compile(r"[;,] also\b|; or\b|; in \w+,|; of [^;|]*,")
#: Folders whose identifiers are checked; names of tests are sentences, which are not.
CODE = ("benchmarks", "examples", "tests", "tuner", "workers")


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A word that is reserved for one idea, and the identifiers that may contain it."""

    #: Its forms.
    forms: frozenset[str]
    #: Identifiers that may contain the word.
    allowed: re.Pattern[str]
    #: Files in which all identifiers may have it.
    files: re.Pattern[str]


def kept(forms: str, allowed: str = r"(?!)", files: str = r"(?!)") -> Kept:
    return Kept(forms=frozenset(forms.split()), allowed=re.compile(allowed), files=re.compile(files))


#: Words of the glossary, with what they do not mean: what to say instead.
KEPT = {
    "cut": kept("cut cuts"),  # how an op becomes tasks: tile shape, slice or split
    "deal": kept("deal deals dealt dealer"),  # which CTA runs which task: assignment, queue
    # What a second launch waits for: start gate.
    "gate": kept("gate gates", r"gate(_error)?|with_gate|gate(_up)?_proj|\w*start_gates?(_name)?"),
    # A schedule that is tried first: prior.
    "hint": kept("hint hints", r"cachehint", r"^(?!tuner/(search/(?!model/axes)|api/)|benchmarks/pairs/)"),
    # What a stream runs in order: strand. DLPack has lanes.
    "lane": kept("lane lanes", r"lanes", r"^(?!tuner/runtime/)"),
    "look": kept("look looks looked", r"look_ahead"),  # a figure beyond the time: inspection
    "offer": kept("offer offers"),  # what a search may choose from: tiling, value, what is untried
    # A launch of a pair, or any piece of a whole: paired launch, half, slice.
    "part": kept("part parts", r"(?!(verify|make|generated|line|row|partition)_parts?\b|kLineParts|kRowParts)\w*"),
    # A step of a sum, or a wave: exchange, wave.
    "round": kept("round rounds", r"round", r"^(?!workers/kernels/|tuner/core/(legal|plan|proof)/)"),
    "told": kept("told untold foretold"),  # what a search has seen: history, observed
    # A repeat, a replica, a different form of a page: repeat, replica, JSON form.
    "twin": kept("twin twins", r"twin|twin_of|check_twin|twin_seed"),
    "walk": kept("walk walks walked", r"walk_revisions", r"^tests/"),  # the order of an op's tiles: raster
}


#: Identifiers without any of these letters are not split into words.
ANY_FORM = re.compile("|".join(form for rule in KEPT.values() for form in rule.forms))


def words_of(identifier: str) -> set[str]:
    """The words of an identifier: ``kLineParts`` and ``line_parts`` have the words line and parts."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)}


def identifiers(path: str, text: str) -> set[str]:
    """Identifiers of a Python or CUDA file outside comments and strings; test names are sentences and are left out."""
    if path.endswith(".py"):
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        names = {token.string for token in tokens if token.type == tokenize.NAME}
    else:
        names = set(re.findall(r"[A-Za-z_]\w*", re.sub(r"//.*|\"[^\"\n]*\"", "", text)))
    return {name for name in names if not name.startswith("test_")}


def strangers(path: str, text: str) -> list[str]:
    """Identifiers that use a reserved word for a different idea."""
    # Most files have none, not even in comments, and splitting a file into tokens is slow.
    if not any(_strangers_of(path, set(re.findall(r"[^\W\d]\w*", text)))):
        return []
    return list(_strangers_of(path, identifiers(path, text)))


def _strangers_of(path: str, names: set[str]) -> Iterator[str]:
    yield from (
        f"{path}: {name} ({word})"
        for name in sorted(names)
        if ANY_FORM.search(name.lower())
        for word, rule in KEPT.items()
        if rule.forms & words_of(name)
        and not rule.allowed.fullmatch(name.lower() if word != "part" else name)
        and not rule.files.search(path)
    )


def rows(root: Path, heading: str) -> list[list[str]]:
    """Cells of the rows of the glossary's table under a heading, without the header row."""
    _, *sections = re.split(r"^#+ ", (root / "docs/glossary.md").read_text(), flags=re.MULTILINE)
    (section,) = [one for one in sections if one.startswith(f"{heading}\n")]
    _, _, *lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_no_term_of_the_glossary_has_two_meanings(root: Path) -> None:
    terms = rows(root, "Glossary")
    assert len(terms) > 60
    assert [term for term, meaning in terms if SECOND_MEANING.search(meaning)] == []


@pytest.mark.parametrize(
    "meaning",
    [
        "one interleaved sample of every candidate; of sums that CTAs send each other, what travels at once",
        "operand rows or columns that a tile reads whole; also a raster's strip of tile columns",
        "a launch of a pair, also a share of a tile",
    ],
)
def test_a_second_meaning_is_seen(meaning: str) -> None:
    assert SECOND_MEANING.search(meaning)


@pytest.mark.slow
def test_no_identifier_uses_a_kept_word_for_another_idea(repository_files: list[Path], root: Path) -> None:
    paths = [path for path in repository_files if path.suffix in (".py", ".cuh", ".cu") and not path.is_symlink()]
    named = [(str(path.relative_to(root)), path) for path in paths]
    found = [one for name, path in named if name.startswith(CODE) for one in strangers(name, path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tuner/core/proof/verify.py", "def verify_parts(): ..."),
        ("tuner/core/plan/two_streams.py", "make_parts(graph)"),
        ("workers/kernels/wgmma/cluster.cuh", "constexpr int kLineParts = 2;"),
        ("workers/gpu/launching/launch.py", "GATE_NAME = 'x'"),
        ("workers/gpu/launching/launch.py", "self.launch_gate(kernel)"),
        ("tuner/search/searcher.py", "TWINS = ()"),
        ("tuner/search/searcher.py", "self._hints = deque(priors)"),
        ("tuner/core/legal/wgmma.py", "def sum_rounds(): ..."),
        ("workers/kernels/wgmma/cluster_sum.cuh", "template <int kRound> void add();"),
        ("tuner/service/inspections.py", "check_look(trial)"),
        ("tuner/search/model/sampler.py", "class _Told: ..."),
        ("tuner/core/plan/order/queues.py", "def deal(): ..."),
        ("tuner/core/space/wgmma_tilings.py", "class WgmmaOffers: ..."),
        ("tuner/core/space/wgmma_tilings.py", "cut = 1"),
        ("tuner/core/plan/order/rasters.py", "rows, cols = walk(raster)"),
    ],
)
def test_an_old_word_is_seen(path: str, text: str) -> None:
    assert len(strangers(path, text)) == 1


def test_no_page_has_a_word_that_has_no_idea_of_its_own_any_more(root: Path) -> None:
    old = re.compile(r"\b(dealt?|dealer|deals|(?<!un)told)\b", flags=re.IGNORECASE)
    pages = [root / "README.md", *(page for page in (root / "docs").rglob("*.md") if page.parent.name != "adr")]
    lines = ((page, line) for page in pages for line in page.read_text().splitlines() if not line.startswith("| `"))
    assert [f"{page.name}: {line}" for page, line in lines if old.search(line)] == []


def test_the_idea_itself_may_have_its_word() -> None:
    assert strangers("workers/gpu/tensors/reference.py", "gate, up = halves  # no launch_gate\nx = 'kLineParts'") == []
    assert strangers("tuner/core/plan/graph/tile_graph.py", "num_parts = self.with_parts(is_part=True)") == []
    assert strangers("workers/timing/rounds.py", "num_rounds = round(3.5)") == []
    assert strangers("workers/kernels/ptx/ptx.cuh", "CacheHint kHint;  // deal, look") == []
