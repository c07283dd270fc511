"""Draw the README's picture: run the real program in a pseudo-terminal, type, and write what the screen shows as SVG.

    python assets/terminal.py assets/terminal.svg
"""

from __future__ import annotations

import os
import pty
import re
import select
import sys
import time
from html import escape
from pathlib import Path

COMMANDS = (
    "edge-llm",
    "who are you?",
    "what are shadow outliers?",
    "what is 7 plus 8?",
    "tell me a short story",
    "/exit",
    "edge-llm bench builtin -p 512 -n 128 2>/dev/null",
)
COLUMNS, LINE_HEIGHT, CHAR_WIDTH, MARGIN = 96, 19, 8.0, 18
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r|\x07")


def record(commands: tuple[str, ...]) -> str:
    """What a terminal shows while a person types ``commands`` into a shell."""
    pid, fd = pty.fork()
    if pid == 0:
        environment = os.environ | {"PS1": "$ ", "TERM": "xterm", "COLUMNS": str(COLUMNS), "LC_ALL": "C.UTF-8"}
        os.execvpe("bash", ["bash", "--norc", "--noprofile"], environment)
    screen = _read_until_prompt(fd)
    for command in commands:
        os.write(fd, command.encode() + b"\n")
        screen += _read_until_prompt(fd)
    os.write(fd, b"exit\n")
    os.close(fd)
    os.waitpid(pid, 0)
    return shown(screen)


def _read_until_prompt(fd: int) -> str:
    """Output up to the next prompt, after which nothing more comes."""
    data = b""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        readable, _, _ = select.select([fd], [], [], 0.5)
        if readable:
            data += os.read(fd, 65536)
        elif _ESCAPES.sub("", data.decode(errors="replace")).endswith(("$ ", "> ")):
            break
    return data.decode(errors="replace")


def shown(output: str) -> str:
    """What stands on the screen after ``output``: carriage returns, erased lines and cursor-up are obeyed."""
    lines, row, start_over = [""], 0, False
    for part in re.split(r"(\r|\n|\x1b\[2K|\x1b\[1A)", output):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
            start_over = False
        elif part == "\r":
            start_over = True
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part == "\x1b[1A":
            row = max(0, row - 1)
        elif text := _ESCAPES.sub("", part):
            lines[row] = text if start_over else lines[row] + text
            start_over = False
    return "\n".join(lines)


def wrap(text: str) -> list[str]:
    """Screen lines of at most `COLUMNS` characters."""
    lines = []
    for line in text.rstrip().removesuffix("$").split("\n"):
        lines += [line[i : i + COLUMNS] for i in range(0, max(1, len(line)), COLUMNS)]
    return lines


def draw(lines: list[str]) -> str:
    """An SVG of a terminal window that shows ``lines``."""
    width = int(COLUMNS * CHAR_WIDTH + 2 * MARGIN)
    height = len(lines) * LINE_HEIGHT + 2 * MARGIN + 24
    rows = []
    for index, line in enumerate(lines):
        kind = "typed" if line.startswith(("> ", "$ ")) else "shown"
        y = MARGIN + 34 + index * LINE_HEIGHT
        rows.append(f'<text x="{MARGIN}" y="{y}" class="{kind}" xml:space="preserve">{escape(line)}</text>')
    dots = "".join(
        f'<circle cx="{20 + 18 * i}" cy="18" r="5.5" fill="{colour}"/>'
        for i, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">\n'
        "<style>text{font:13.3px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
        ".shown{fill:#d6deeb}.typed{fill:#7fdbca;font-weight:bold}</style>\n"
        f'<rect width="{width}" height="{height}" rx="9" fill="#0d1622"/>{dots}\n' + "\n".join(rows) + "\n</svg>\n"
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw(wrap(record(COMMANDS))))
