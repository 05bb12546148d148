"""Where names are in ZooKeeper.

Below ``/seglog/<cluster>`` there are two nodes::

    names/<first part of the name>/<its other parts>     a value; parts are escaped, with ":" between them
    names/<first part>/=                                 the value of a name of one part
    writers/<a writer>-<number>                          what that writer has committed last

So a node in ``names/*/`` is a value and nothing else is: a name without a value has no node, a value's version is its
node's, and what is below a name may stay when its own value goes. The nodes right below ``names`` stay for good.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

_SELF: Final = "="
"""No escaped name has it."""


class ZooKeeperPaths:
    """The nodes of one cluster.

    >>> paths = ZooKeeperPaths("logs")
    >>> paths.of("topics/web/0"), paths.of("cluster"), paths.of("./a:b")
    ('/seglog/logs/names/topics/web:0', '/seglog/logs/names/cluster/=', '/seglog/logs/names/%2E/a%3Ab')
    >>> paths.name("/seglog/logs/names/topics/web:0"), paths.name("/seglog/logs/names/topics")
    ('topics/web/0', None)
    """

    def __init__(self, cluster: str) -> None:
        self.root = f"/seglog/{cluster}"
        self.names = f"{self.root}/names"
        self.writers = f"{self.root}/writers"

    def folder(self, name: str) -> str:
        return f"{self.names}/{_escape(name.partition('/')[0])}"

    def of(self, name: str) -> str:
        first, slash, rest = name.partition("/")
        leaf = ":".join(map(_escape, rest.split("/"))) if slash else _SELF
        return f"{self.names}/{_escape(first)}/{leaf}"

    def name(self, path: str) -> str | None:
        first, slash, leaf = path.removeprefix(f"{self.names}/").partition("/")
        if not slash or not path.startswith(f"{self.names}/"):
            return None
        return "/".join(map(unquote, [first] if leaf == _SELF else [first, *leaf.split(":")]))


def _escape(part: str) -> str:
    """ZooKeeper refuses control characters and nodes that are called "." or ".."."""
    return quote(part, safe="") if part.strip(".") else part.replace(".", "%2E")
