"""What can go wrong between the test Hub and its client."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field

_LOCK = threading.Lock()


@dataclass
class Fault:
    """What goes wrong with the requests whose method and path match.

    Attributes:
        method: GET, PUT and so on.
        path: regular expression, searched for in the raw path with its query.
        status: answer with this status and no more; 0 to cut the connection instead.
        times: how often; negative for ever.
        after: of a cut, bytes of the body that still pass.
        skip: matching requests that go well before.
        headers: of the answer.
        delay: seconds to wait first; with status 1 nothing else goes wrong.
    """

    method: str
    path: str
    status: int = 0
    times: int = 1
    after: int = 0
    skip: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0


def pick(faults: list[Fault], method: str, path: str) -> Fault | None:
    """The fault that hits a request, counted down; None when it goes well."""
    with _LOCK:
        for fault in faults:
            if fault.method == method and fault.times and re.search(fault.path, path):
                if fault.skip > 0:
                    fault.skip -= 1
                    return None
                fault.times -= 1
                return fault
    return None
