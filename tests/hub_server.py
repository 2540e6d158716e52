"""A loopback server that speaks the Hub's protocol to the real huggingface_hub client, with faults on demand.

It keeps everything in memory: repositories with their whole history, large files, accounts, and a second port that
plays the CDN. Tests read ``repos`` and ``requests``; client processes set faults through ``POST /-/faults``. The
client must find its address in ``HF_ENDPOINT`` before it is imported: see hub_client.py.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote

import yaml
from hub_faults import Fault, pick
from hub_repos import LFS_SUFFIXES, Blob, HubError, Repo

ACCOUNTS = {"alice-write": ("alice", "write"), "alice-read": ("alice", "read"), "bob-write": ("bob", "write")}
"""Token → user and role."""

LFS_FROM_BYTES = 10_000_000
KINDS = ("models", "datasets", "spaces")
DATE = "2026-01-01T00:00:00.000Z"


@dataclass
class Reply:
    """An answer; a dict or list is sent as JSON."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class HubServer:
    """The server's state; `hub_server` starts it.

    Attributes:
        repos: id → repository. Data sets and spaces share the dictionary.
        requests: "METHOD raw-path [range]" of all requests, the CDN's included.
        faults: what goes wrong; the first that matches counts.
        chunk_size: larger LFS files are uploaded in parts of this size.
    """

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.requests: list[str] = []
        self.faults: list[Fault] = []
        self.chunk_size = 1 << 40
        self.parts: dict[tuple[str, int], bytes] = {}
        self.lock = threading.RLock()
        self._ports = [_Server(self, cdn=False), _Server(self, cdn=True)]
        self.url, self.cdn = (f"http://127.0.0.1:{port.server_address[1]}" for port in self._ports)

    def start(self) -> None:
        for port in self._ports:
            threading.Thread(target=port.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        for port in self._ports:
            port.shutdown()
            port.server_close()

    def repo(self, name: str, user: tuple[str, str] | None, write: bool = False, content: bool = False) -> Repo:
        """The repository, if the caller may see it, write to it (``write``) or read its files (``content``)."""
        repo = self.repos.get(name)
        if repo is None or (repo.private and (user is None or user[0] != repo.owner)):
            raise HubError(401 if user is None else 404, "Repository not found", "RepoNotFound")
        if write and user is None:
            raise HubError(401, "Invalid username or password.")
        if write and user[0] != repo.owner:
            raise HubError(403, "Forbidden: you don't have write access to this repository.")
        if write and user[1] != "write":
            raise HubError(403, "Forbidden: this token has only the read role, write is needed.")
        if content and repo.gated and (user is None or user[0] != repo.owner):
            raise HubError(401 if user is None else 403, f"Access to model {name} is restricted.", "GatedRepo")
        return repo


@dataclass
class Call:
    """A request, taken apart."""

    hub: HubServer
    user: tuple[str, str] | None
    kind: str
    id: str
    rest: str
    query: dict[str, list[str]]
    body: bytes
    headers: Any

    def json(self) -> Any:
        return json.loads(self.body or b"{}")

    def signed_in(self) -> None:
        if self.user is None:
            raise HubError(401, "Invalid username or password.")

    def repo(self, **needs: bool) -> Repo:
        return self.hub.repo(self.id, self.user, **needs)

    def split(self) -> tuple[str, str]:
        """Revision and path in ``rest``, both unquoted."""
        revision, _, path = self.rest.partition("/")
        return unquote(revision), unquote(path)


# -- accounts and repositories ----------------------------------------------------------------------------------------


def whoami(call: Call) -> Reply:
    call.signed_in()
    name, role = call.user
    return Reply({"type": "user", "name": name, "orgs": [], "auth": {"accessToken": {"role": role}}})


def create_repo(call: Call) -> Reply:
    wanted = call.json()
    call.signed_in()
    owner = wanted.get("organization") or call.user[0]
    name, body = f"{owner}/{wanted['name']}", {"url": f"{call.hub.url}/{owner}/{wanted['name']}"}
    if name in call.hub.repos:
        return Reply({**body, "error": "You already created this model repo"}, 409)
    if call.user != (owner, "write"):
        raise HubError(403, f"Forbidden: you don't have the rights to create a model under {owner}.")
    call.hub.repos[name] = Repo(name, private=wanted.get("visibility") == "private" or bool(wanted.get("private")))
    return Reply(body)


def settings(call: Call) -> Reply:
    repo, wanted = call.repo(write=True), call.json()
    repo.private = wanted.get("visibility", "private" if repo.private else "public") == "private"
    repo.gated = bool(wanted.get("gated", repo.gated))
    return Reply({})


def validate_yaml(call: Call) -> Reply:
    match = re.match(r"---\n(.*?)\n---", call.json()["content"], re.DOTALL)
    try:
        data = (yaml.safe_load(match[1]) if match else None) or {}
    except yaml.YAMLError as error:
        return Reply({"errors": [{"message": f"YAML: {error}"}], "warnings": []}, 400)
    for entry in data.get("model-index") or []:
        if not entry.get("name") or "results" not in entry:
            return Reply({"errors": [{"message": '"model-index" needs name and results'}], "warnings": []}, 400)
    return Reply({"errors": [], "warnings": []})


def info(call: Call) -> Reply:
    repo = call.repo()
    commit = repo.at(call.split()[1] or "main" if call.rest else "main")
    card = repo.front_matter(commit)
    siblings: list[dict[str, Any]] = [{"rfilename": path} for path in sorted(commit.files)]
    if "blobs" in call.query:
        for entry in siblings:
            blob = commit.files[entry["rfilename"]]
            entry |= {"size": len(blob.data), "blobId": blob.describe("")["oid"]}
            entry |= {"lfs": blob.lfs_facts()} if blob.lfs else {}
    facts = {"id": repo.id, "sha": commit.oid, "private": repo.private, "gated": "auto" if repo.gated else False}
    facts |= {"siblings": siblings, "tags": card.get("tags", []), "cardData": card, "downloads": 0, "likes": 0}
    facts |= {key: card[key] for key in ("pipeline_tag", "library_name") if key in card}
    return Reply({**facts, "createdAt": DATE, "lastModified": DATE})


def refs(call: Call) -> Reply:
    groups: dict[str, Any] = {"branches": [], "converts": [], "tags": [], "pullRequests": []}
    for ref, oid in call.repo().refs.items():
        group = {"heads": "branches", "tags": "tags", "pr": "pullRequests"}[ref.split("/")[1]]
        groups[group].append({"name": ref.split("/", 2)[2], "ref": ref, "targetCommit": oid})
    return Reply(groups)


def commits(call: Call) -> Reply:
    history = call.repo().history(call.split()[1])
    same = {"message": "", "date": DATE}
    return Reply([{"id": c.oid, "title": c.title, "authors": [{"user": c.author}], **same} for c in history])


def change_ref(call: Call) -> Reply:
    """Branches and tags: POST makes one, DELETE removes it."""
    repo, wanted = call.repo(write=True), call.json()
    group, _, name = call.rest.partition("/")
    name = unquote(name)
    if call.headers["X-Method"] == "DELETE":
        full = f"refs/{'heads' if group == 'branch' else 'tags'}/{name}"
        if repo.refs.pop(full, None) is None:
            raise HubError(404, f"Reference does not exist: {name}", "RevisionNotFound")
        return Reply({})
    start = wanted.get("startingPoint", "main") if group == "branch" else name
    full = f"refs/heads/{name}" if group == "branch" else f"refs/tags/{wanted['tag']}"
    if full in repo.refs:
        raise HubError(409, f"Reference already exists: {full}")
    repo.refs[full] = repo.at(start).oid
    return Reply({})


# -- uploads ----------------------------------------------------------------------------------------------------------


def preupload(call: Call) -> Reply:
    repo = call.repo(write="create_pr" not in call.query)
    call.signed_in()
    files = repo.at(call.split()[1]).files
    answers = []
    for wanted in call.json()["files"]:
        path = wanted["path"]
        large = path.endswith(LFS_SUFFIXES) or wanted["size"] >= LFS_FROM_BYTES
        answer = {"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
        answers.append(answer | ({"oid": files[path].oid} if path in files else {}))
    return Reply({"files": answers})


def lfs_batch(call: Call) -> Reply:
    repo, objects = call.repo(), []
    call.signed_in()
    for wanted in call.json()["objects"]:
        oid, size = wanted["oid"], wanted["size"]
        upload: dict[str, Any] = {"href": f"{call.hub.url}/-/lfs/{repo.id}/{oid}", "header": {}}
        if size > call.hub.chunk_size:
            parts = range(1, math.ceil(size / call.hub.chunk_size) + 1)
            upload["header"] = {f"{n:05d}": f"{upload['href']}/{n}" for n in parts}
            upload["header"]["chunk_size"] = str(call.hub.chunk_size)
        verify = {"href": f"{call.hub.url}/-/verify/{repo.id}"}
        actions = {} if oid in repo.stored else {"actions": {"upload": upload, "verify": verify}}
        objects.append({"oid": oid, "size": size, **actions})
    return Reply({"transfer": "basic", "objects": objects})


def lfs_put(call: Call) -> Reply:
    oid, _, part = call.rest.partition("/")
    if part:
        call.hub.parts[oid, int(part)] = call.body
        return Reply(headers={"ETag": f'"{hashlib.md5(call.body).hexdigest()}"'})
    return _store(call, oid, call.body)


def lfs_complete(call: Call) -> Reply:
    wanted = call.json()
    numbers = [part["partNumber"] for part in wanted["parts"]]
    return _store(call, wanted["oid"], b"".join(call.hub.parts.pop((wanted["oid"], n)) for n in numbers))


def _store(call: Call, oid: str, data: bytes) -> Reply:
    if hashlib.sha256(data).hexdigest() != oid:
        raise HubError(400, "The content does not have the announced sha256.")
    call.hub.repos[call.id].stored[oid] = data
    return Reply()


def lfs_verify(call: Call) -> Reply:
    if call.json()["oid"] not in call.repo().stored:
        raise HubError(404, "The object was never uploaded.")
    return Reply({})


def commit(call: Call) -> Reply:
    """All lines of the request, or none of them."""
    as_pull_request = "create_pr" in call.query
    repo = call.repo(write=not as_pull_request)
    call.signed_in()
    lines = [json.loads(line) for line in call.body.splitlines() if line.strip()]
    header = lines[0]["value"]
    with call.hub.lock:
        revision = call.split()[1]
        ref, head = repo.ref(revision), repo.at(revision)
        if header.get("parentCommit") not in (None, head.oid):
            raise HubError(412, "A commit has happened since. Please refresh and try again.")
        files = dict(head.files)
        for line in lines[1:]:
            _apply(repo, files, line["key"], line["value"])
        extra = {}
        if as_pull_request:
            repo.pull_requests += 1
            ref = f"refs/pr/{repo.pull_requests}"
            repo.refs[ref] = head.oid
            extra = {"pullRequestUrl": f"{call.hub.url}/{repo.id}/discussions/{repo.pull_requests}"}
        if ref is None or ref.startswith("refs/tags/"):
            raise HubError(400, f"Cannot commit to {revision}, which is not a branch.")
        done = repo.add(ref, header["summary"], call.user[0], files)
    url = f"{call.hub.url}/{repo.id}/commit/{done.oid}"
    return Reply({"success": True, "commitOid": done.oid, "commitUrl": url, "hookOutput": "", **extra})


def _apply(repo: Repo, files: dict[str, Blob], key: str, value: dict[str, Any]) -> None:
    path = value["path"]
    if key == "file":
        files[path] = Blob(base64.b64decode(value["content"]), lfs=False)
    elif key == "lfsFile":
        if value["oid"] not in repo.stored:
            raise HubError(400, f"The LFS object of {path} was never uploaded.")
        files[path] = Blob(repo.stored[value["oid"]], lfs=True)
    else:  # deletedFile, deletedFolder
        gone = [name for name in files if name == path or name.startswith(path.rstrip("/") + "/")]
        if not gone:
            raise HubError(404, "A file with this name doesn't exist", "EntryNotFound")
        for name in gone:
            del files[name]


# -- downloads --------------------------------------------------------------------------------------------------------


def tree(call: Call) -> Reply:
    repo = call.repo(content=True)
    revision, folder = _revision_and_path(call)
    files = repo.at(revision).files
    prefix = f"{folder}/" if folder else ""
    inside = {path: blob for path, blob in files.items() if path.startswith(prefix)}
    if folder and not inside:
        raise HubError(404, f"{folder} does not exist on {revision}", "EntryNotFound")
    recursive = call.query.get("recursive", ["false"])[0].lower() == "true"
    shown, folders = [], set()
    for path, blob in sorted(inside.items()):
        parts = path.removeprefix(prefix).split("/")
        folders |= {prefix + "/".join(parts[:depth]) for depth in range(1, len(parts) if recursive else 2)}
        if recursive or len(parts) == 1:
            shown.append(blob.describe(path))
    folders -= set(inside)
    return Reply([*shown, *({"type": "directory", "path": f, "size": 0, "oid": "0" * 40} for f in sorted(folders))])


def paths_info(call: Call) -> Reply:
    files = call.repo(content=True).at(call.split()[1]).files
    wanted = parse_qs(call.body.decode()).get("paths", [])
    return Reply([files[path].describe(path) for path in wanted if path in files])


def _revision_and_path(call: Call) -> tuple[str, str]:
    _, _, rest = call.rest.partition("/")
    revision, _, path = rest.partition("/")
    return unquote(revision), unquote(path)


def resolve(call: Call) -> Reply:
    repo = call.repo(content=True)
    revision, path = _revision_and_path(call)
    found = repo.at(revision)
    blob = found.files.get(path)
    if blob is None:
        raise HubError(404, "Entry not found", "EntryNotFound", **{"X-Repo-Commit": found.oid})
    headers = {"X-Repo-Commit": found.oid, "ETag": f'"{blob.oid}"', "Accept-Ranges": "bytes"}
    if blob.lfs:
        headers |= {"X-Linked-Etag": f'"{blob.oid}"', "X-Linked-Size": str(len(blob.data))}
        return Reply(b"", 302, {**headers, "Location": f"{call.hub.cdn}/-/cdn/{quote(repo.id)}/{blob.oid}"})
    return _ranged(call, blob.data, headers)


def cdn(call: Call) -> Reply:
    if call.headers.get("Authorization"):
        raise HubError(400, "A token was sent to the CDN.")
    return _ranged(call, call.hub.repos[call.id].stored[call.rest], {"Accept-Ranges": "bytes"})


def _ranged(call: Call, data: bytes, headers: dict[str, str]) -> Reply:
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", call.headers.get("Range") or "")
    if not match:
        return Reply(data, 200, headers)
    start, end = int(match[1]), min(int(match[2] or len(data) - 1), len(data) - 1)
    if start > end:
        raise HubError(416, "The range is past the end.", **{"Content-Range": f"bytes */{len(data)}"})
    return Reply(data[start : end + 1], 206, {**headers, "Content-Range": f"bytes {start}-{end}/{len(data)}"})


# -- control and routes -----------------------------------------------------------------------------------------------


def control(call: Call) -> Reply:
    """``POST /-/faults`` replaces the faults, and ``chunk_size`` where given."""
    wanted = call.json()
    call.hub.faults = [Fault(**fault) for fault in wanted["faults"]]
    call.hub.chunk_size = wanted.get("chunk_size", call.hub.chunk_size)
    return Reply({})


_ID = r"(?P<id>[^/]+/[^/]+)"
_API = rf"/api/(?P<kind>{'|'.join(KINDS)})/{_ID}"
ROUTES: list[tuple[str, str, Callable[[Call], Reply]]] = [
    ("GET", r"/api/whoami-v2", whoami),
    ("POST", r"/api/repos/create", create_repo),
    ("POST", r"/api/validate-yaml", validate_yaml),
    ("PUT", rf"{_API}/settings", settings),
    ("POST", rf"{_API}/(?P<rest>preupload/[^/]+)", preupload),
    ("POST", rf"{_API}/(?P<rest>commit/[^/]+)", commit),
    ("POST", rf"{_API}/(?P<rest>paths-info/[^/]+)", paths_info),
    ("POST|DELETE", rf"{_API}/(?P<rest>(branch|tag)/.+)", change_ref),
    ("GET", rf"{_API}/refs", refs),
    ("GET", rf"{_API}/(?P<rest>commits/[^/]+)", commits),
    ("GET", rf"{_API}/(?P<rest>tree/.+)", tree),
    ("GET", rf"{_API}(/(?P<rest>revision/[^/]+))?", info),
    ("POST", rf"(/(?P<kind>datasets|spaces))?/{_ID}\.git/info/lfs/objects/batch", lfs_batch),
    ("PUT", rf"/-/lfs/{_ID}/(?P<rest>[0-9a-f]+(/\d+)?)", lfs_put),
    ("POST", rf"/-/lfs/{_ID}/(?P<rest>[0-9a-f]+)", lfs_complete),
    ("POST", rf"/-/verify/{_ID}", lfs_verify),
    ("POST", r"/-/faults", control),
    ("GET|HEAD", rf"(/(?P<kind>datasets|spaces))?/{_ID}/(?P<rest>resolve/.+)", resolve),
]
CDN_ROUTES = [("GET|HEAD", rf"/-/cdn/{_ID}/(?P<rest>[0-9a-f]+)", cdn)]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, hub: HubServer, cdn: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub, self.routes = hub, CDN_ROUTES if cdn else ROUTES


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # header and body leave together: as two packets, the second waits for the answer to the first
    server: _Server

    def _serve(self) -> None:
        hub = self.server.hub
        hub.requests.append(" ".join([self.command, self.path, self.headers.get("Range") or ""]).strip())
        fault = pick(hub.faults, self.command, self.path)
        if fault is not None:
            time.sleep(fault.delay)
        cut = fault is not None and fault.status == 0
        if cut and self.command in ("PUT", "POST"):
            self.rfile.read(min(fault.after, int(self.headers.get("Content-Length") or 0)))
            self.close_connection = True
            return
        body = self._body()
        if fault is not None and fault.status > 1:
            self._send(Reply({"error": "injected"}, fault.status, fault.headers))
            return
        self._send(self._answer(hub, body), fault.after if cut else None)

    def _answer(self, hub: HubServer, body: bytes) -> Reply:
        path, _, query = self.path.partition("?")
        try:
            user = self._user()
            for methods, pattern, answer in self.server.routes:
                match = re.fullmatch(pattern, path)
                if match and self.command in methods.split("|"):
                    parts = {"kind": None, "id": None, "rest": None, **match.groupdict()}
                    self.headers["X-Method"] = self.command
                    named = {key: value or "" for key, value in parts.items()}
                    named["id"] = unquote(named["id"])
                    return answer(Call(hub, user, query=parse_qs(query), body=body, headers=self.headers, **named))
            raise HubError(404, f"No such address: {self.command} {path}")
        except HubError as error:
            return Reply({"error": str(error)}, error.status, error.headers)

    def _user(self) -> tuple[str, str] | None:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and token not in ACCOUNTS:
            raise HubError(401, "Invalid credentials in Authorization header")
        return ACCOUNTS.get(token)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _send(self, reply: Reply, cut_after: int | None = None) -> None:
        is_bytes = isinstance(reply.body, bytes)
        data = reply.body if is_bytes else b"" if reply.body is None else json.dumps(reply.body).encode()
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/octet-stream" if is_bytes else "application/json")
        for name, value in {"Content-Length": str(len(data)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[:cut_after])
        if cut_after is not None:
            self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve

    def log_message(self, *_: Any) -> None:
        """Tests read ``requests`` instead."""


@contextmanager
def hub_server() -> Iterator[HubServer]:
    """A running server."""
    hub = HubServer()
    hub.start()
    try:
        yield hub
    finally:
        hub.stop()
