"""HTML and SVG as text: everything that comes from outside is escaped here and nowhere else."""

import html
from typing import NewType

Markup = NewType("Markup", str)
"""Text that is markup already."""

VOID_ELEMENTS = frozenset({"meta", "rect", "line", "circle", "path"})


def text(content: object) -> Markup:
    """Escape text."""
    return Markup(html.escape(str(content)))


def element(name: str, /, *children: Markup, **attributes: object) -> Markup:
    """Write an element.

    Args:
        name: Its tag.
        children: Markup inside.
        attributes: Escaped values; ``class_`` and ``for_`` lose the underscore, others become dashes. False and None
            leave an attribute out, True writes its name alone.
    """
    words = [name]
    for key, value in attributes.items():
        written = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(written)
        elif value is not None and value is not False:
            words.append(f'{written}="{html.escape(str(value))}"')
    opening = " ".join(words)
    if name in VOID_ELEMENTS and not children:
        return Markup(f"<{opening}>" if name == "meta" else f"<{opening}/>")
    return Markup(f"<{opening}>{''.join(children)}</{name}>")


def percent(value: float, whole: float) -> str:
    """Write a position or a width inside a drawing of any size."""
    return f"{100 * value / whole:.3f}%" if whole else "0%"


def scrolling(content: Markup, name: str) -> Markup:
    """Let wide content scroll by itself, by keyboard too."""
    return element("div", content, class_="scroll", tabindex=0, role="region", aria_label=name)
