"""Plots for Markdown, in the language of Mermaid."""

import math
from collections.abc import Sequence


def line_plot(title: str, x: tuple[str, Sequence[int]], y: tuple[str, Sequence[float]]) -> str:
    """A fenced `xychart-beta` block with one line: names and values of both axes. Values of x are equally far apart.

    The y axis begins at 0. Title and names hold no quotation mark.
    """
    (x_name, places), (y_name, heights) = x, y
    quoted = ", ".join(f'"{place}"' for place in places)
    lines = (
        "```mermaid",
        "xychart-beta",
        f'    title "{title}"',
        f'    x-axis "{x_name}" [{quoted}]',
        f'    y-axis "{y_name}" 0 --> {math.ceil(max(heights))}',
        f"    line [{', '.join(f'{height:.2f}' for height in heights)}]",
        "```",
    )
    return "\n".join(lines)
