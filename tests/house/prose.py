"""Sentences of a Markdown page: what a reader reads, without code, tables, headings and quotes."""

from __future__ import annotations

import re

#: A full stop behind one of these ends no sentence.
ABBREVIATIONS = ("e.g.", "i.e.", "et al.", "cf.", "vs.")

_FENCE = re.compile(r"^\s*(```|~~~)")
#: Lines that belong to no sentence: headings, rows of tables, quotes, rulers.
_APART = re.compile(r"^\s*(#{1,6} |\||>|-{3,}$)")
_ITEM = re.compile(r"^\s*([-*+]|\d+\.) +")
_END = re.compile(r"(?<=[.!?])[)\"'*_]*\s+")


def blocks(text: str) -> list[str]:
    """Paragraphs and items of lists, each as one line."""
    found, lines, in_code = list[str](), list[str](), False
    for line in [*re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).splitlines(), ""]:
        fence = bool(_FENCE.match(line))
        ends = fence or in_code or not line.strip() or bool(_APART.match(line))
        if (ends or _ITEM.match(line)) and lines:
            found.append(" ".join(lines))
            lines = []
        if not ends:
            lines.append(_ITEM.sub("", line).strip())
        in_code ^= fence
    return found


def plain(block: str) -> str:
    """Words as they are read: a link is its text, a picture nothing, a span of code one word."""
    block = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", block)
    block = re.sub(r"`[^`]*`", "code", block)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", block)


def sentences(text: str) -> list[str]:
    """All sentences of a page."""
    found = []
    for block in map(plain, blocks(text)):
        for abbreviation in ABBREVIATIONS:
            block = block.replace(abbreviation, abbreviation.replace(".", "\u2024"))
        found += [sentence.strip() for sentence in _END.split(block) if sentence.strip()]
    return found


def comments(source: str) -> str:
    """What the comments of a CUDA source say, a paragraph each run of lines that are nothing but comment."""
    lines = (re.fullmatch(r"\s*//+ ?(.*)", line) for line in source.splitlines())
    return "\n".join(line[1] if line else "" for line in lines)


def num_words(sentence: str) -> int:
    """Words and numbers; signs such as an arrow or a dash are none."""
    return sum(any(character.isalnum() for character in word) for word in sentence.split())
