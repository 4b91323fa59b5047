"""tools/links.py: what is said of links, and of a machine without a network. The links themselves: make links."""

from __future__ import annotations

from typing import Any

import pytest

from tools.links import verdict

UNREACHED = "HTTPSConnectionPool(host='a.example', port=443): Max retries exceeded with url: / (Failed to resolve)"


def link(status: str, info: str = "", uri: str = "https://a.example/") -> dict[str, Any]:
    return {"filename": "docs/a.md", "lineno": 3, "status": status, "code": 0, "uri": uri, "info": info}


LOCAL = link("broken", "gone", "other.md")


@pytest.mark.parametrize(
    ("links", "code", "text"),
    [
        ([link("working"), link("redirected"), link("ignored"), LOCAL], 0, "2 links lead somewhere"),
        ([link("broken", UNREACHED), link("timeout", UNREACHED), link("unchecked")], 2, "no network: none of 2 links"),
        ([link("working"), link("broken", UNREACHED)], 1, "docs/a.md:3: https://a.example/: HTTPSConn"),
        ([link("broken", "404 Client Error"), link("broken", UNREACHED)], 1, "2 of 2 links are broken"),
    ],
    ids=["all answer", "no network", "one host", "not found"],
)
def test_the_verdict(links: list[dict[str, Any]], code: int, text: str) -> None:
    """One host that is away is a broken link; a machine that reaches none has no network."""
    found, said = verdict(links)
    assert (found, text in said) == (code, True), said
