"""What the test Hub stores: repositories with their whole history, in memory."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any

import yaml

LFS_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".arrow", ".gz", ".zip", ".onnx")


class HubError(Exception):
    """A reply that refuses, in the form that the client turns into its exceptions."""

    def __init__(self, status: int, message: str, code: str | None = None, **headers: str) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers
        self.headers["X-Error-Message"] = message
        if code is not None:
            self.headers["X-Error-Code"] = code


@dataclass(frozen=True)
class Blob:
    """Content of a file; ``oid`` is what git or git-lfs would call it."""

    data: bytes
    lfs: bool

    @property
    def oid(self) -> str:
        if self.lfs:
            return hashlib.sha256(self.data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()

    def describe(self, path: str) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(self.data), "oid": self.oid}
        if self.lfs:
            entry |= {"oid": hashlib.sha1(self.data).hexdigest(), "lfs": self.lfs_facts()}
        return entry

    def lfs_facts(self) -> dict[str, Any]:
        return {"oid": self.oid, "sha256": self.oid, "size": len(self.data), "pointerSize": 130}


@dataclass(frozen=True)
class Commit:
    """A state of a repository; commits never change."""

    oid: str
    title: str
    author: str
    files: dict[str, Blob]
    parent: str | None


@dataclass
class Repo:
    """A repository: its commits, and the names that point to them."""

    id: str
    private: bool = False
    gated: bool = False
    refs: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    stored: dict[str, bytes] = field(default_factory=dict)
    pull_requests: int = 0

    def __post_init__(self) -> None:
        attributes = "".join(f"*{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in LFS_SUFFIXES)
        self.add("refs/heads/main", "initial commit", self.owner, {".gitattributes": Blob(attributes.encode(), False)})

    @property
    def owner(self) -> str:
        return self.id.split("/")[0]

    def add(self, ref: str, title: str, author: str, files: dict[str, Blob]) -> Commit:
        parent = self.refs.get(ref)
        names = "".join(f"{path}{blob.oid}" for path, blob in sorted(files.items()))
        oid = hashlib.sha1(f"{parent}{title}{names}{len(self.commits)}".encode()).hexdigest()
        self.commits[oid] = Commit(oid, title, author, files, parent)
        self.refs[ref] = oid
        return self.commits[oid]

    def ref(self, revision: str) -> str | None:
        wanted = (revision, f"refs/heads/{revision}", f"refs/tags/{revision}")
        return next((name for name in wanted if name in self.refs), None)

    def at(self, revision: str = "main") -> Commit:
        """The commit that a branch, a tag, a pull request or a commit id names."""
        name = self.ref(revision)
        if name is None and revision not in self.commits:
            raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.commits[revision if name is None else self.refs[name]]

    def history(self, revision: str = "main") -> list[Commit]:
        """Newest first."""
        found, oid = [], self.at(revision).oid
        while oid is not None:
            found.append(self.commits[oid])
            oid = self.commits[oid].parent
        return found

    def front_matter(self, commit: Commit) -> dict[str, Any]:
        card = commit.files.get("README.md")
        match = re.match(r"---\n(.*?)\n---", card.data.decode() if card else "", re.DOTALL)
        return (yaml.safe_load(match[1]) if match else None) or {}
