"""A WordNet of eleven nouns in the files of the real one, written in code."""

from __future__ import annotations

from pathlib import Path

NOUNS: dict[str, list[str]] = {
    "entity": [],
    "animal": ["entity"],
    "artifact": ["entity"],
    "pet": ["animal"],
    "feline": ["animal"],
    "cat": ["feline"],
    "dog": ["animal", "pet"],
    "spider_monkey": ["animal"],
    "tool": ["artifact"],
    "seal": ["tool"],
    "seal#2": ["animal"],
}
"""Noun -> its hypernyms; ``#2`` is the second sense of a noun. Hypernyms come first."""

EMPTY = ("cntlist.rev", "index.sense", "adj.exc", "adv.exc", "noun.exc", "verb.exc")
OTHER = ("data.adj", "data.adv", "data.verb", "index.adj", "index.adv", "index.verb")
HEADER = "  1 A small WordNet for tests.\n"


def write_wordnet(folder: Path) -> Path:
    """Write the files that nltk reads; returns the folder."""
    folder.mkdir(parents=True)
    for name in EMPTY:
        (folder / name).write_text("")
    for name in OTHER:
        (folder / name).write_text(HEADER)
    (folder / "lexnames").write_text("".join(f"{i:02d}\tnoun.part{i}\t1\n" for i in range(4)))
    data, offsets = HEADER, {}
    for noun, hypernyms in NOUNS.items():
        offsets[noun] = len(data)  # a synset is called by the byte its line starts at
        pointers = "".join(f" @ {offsets[above]:08d} n 0000" for above in hypernyms)
        data += f"{len(data):08d} 03 n 01 {noun.split('#')[0]} 0 {len(hypernyms):03d}{pointers} | no gloss  \n"
    (folder / "data.noun").write_text(data)
    senses: dict[str, list[int]] = {}
    for noun, offset in offsets.items():
        senses.setdefault(noun.split("#")[0], []).append(offset)
    lines = [
        f"{noun} n {len(found)} 1 @ {len(found)} 0 {' '.join(f'{offset:08d}' for offset in found)}  \n"
        for noun, found in sorted(senses.items())
    ]
    (folder / "index.noun").write_text(HEADER + "".join(lines))
    return folder
