"""Lengths: how long the sequences of a batch are, in bins of powers of two."""

from collections import Counter
from collections.abc import Sequence

from infinipipe_contract.text import count_of
from infinipipe_planner.report_page.markup import Markup, element, percent, text


def histogram(lengths_tokens: Sequence[int]) -> Markup:
    """Draw a bar a bin, by number of sequences; the share of all tokens is written beside it."""
    counts: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    for length in lengths_tokens:
        bin_index = (length - 1).bit_length()
        counts[bin_index] += 1
        tokens[bin_index] += length
    most, token_total = max(counts.values()), sum(lengths_tokens)
    rows = []
    for bin_index in range(min(counts), max(counts) + 1):
        bar = element("rect", width=percent(counts[bin_index], most), height="100%", class_="bar")
        drawing = element("svg", bar, width="100%", height=14, aria_hidden="true")
        name = f"{2**bin_index // 2 + 1 if bin_index else 1} to {2**bin_index}"
        share = (
            f"{count_of(counts[bin_index], 'sequence')}, {tokens[bin_index] / token_total:.0%} of tokens"
            if counts[bin_index]
            else "none"
        )
        rows.append(
            element(
                "tr",
                element("th", text(name), scope="row"),
                element("td", drawing, class_="wide"),
                element("td", text(share)),
            )
        )
    head = element("tr", element("th", text("tokens"), scope="col"), element("th"), element("th"))
    return element("table", head, *rows, class_="histogram")
