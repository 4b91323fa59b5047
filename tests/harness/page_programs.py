"""Python blocks of the pages as programs: with what a fragment leaves out, and with servers in place of the page's."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from tests.harness.page_blocks import Block


class _WithoutDots(ast.NodeTransformer):
    """``f(..., x=1)`` becomes ``f(**_given, x=1)``: other options are there, whatever they are."""

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """One call."""
        self.generic_visit(node)
        if any(isinstance(each, ast.Constant) and each.value is ... for each in node.args):
            node.args = []
            node.keywords.insert(0, ast.keyword(None, ast.Name("_given", ast.Load())))
        return node


def without_dots(text: str) -> ast.Module:
    """A block whose calls take the options of ``_given`` where the page has dots."""
    tree: ast.Module = _WithoutDots().visit(ast.parse(text.replace("…", "...")))
    return ast.fix_missing_locations(tree)


def run_block(block: Block, names: dict[str, Any], places: Mapping[str, str] | None = None) -> Any:
    """Run a block as its reader does.

    Args:
        block: of a page.
        names: what the reader has; gets what the block makes. ``_given`` are the options that the page leaves out.
        places: texts of the page, such as an address, and what stands there here. Each must be in it.

    Returns:
        The value of its last line, where that is an expression; else None.
    """
    text = block.text
    for shown, here in (places or {}).items():
        assert shown in text, f"{block} has no {shown!r}"
        text = text.replace(shown, here)
    tree = without_dots(text)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(block), "exec"), names)  # noqa: S102 - our own page
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), str(block), "eval"), names)  # noqa: S307 - as above
