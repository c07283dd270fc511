"""Starts servers by forking a process that has imported all that a server needs: the suite starts some 500 of them.

    python forks.py serve SOCKET            waits on SOCKET
    python forks.py start SOCKET ARGUMENTS  has a server started, and ends when it ends; the server ends when this is killed

Output, folder and environment are those of who starts it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path


def start(path: str, arguments: list[str]) -> int:
    """Ask for a server; its exit code when it has ended."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        asked = json.dumps({"arguments": arguments, "folder": str(Path.cwd()), "environment": dict(os.environ)}).encode()
        socket.send_fds(line, [len(asked).to_bytes(4, "big")], [1, 2])
        line.sendall(asked)
        signal.signal(signal.SIGTERM, lambda *_: line.shutdown(socket.SHUT_WR))
        code = line.recv(4)
    return int.from_bytes(code, "big") if code else 1


def serve(path: str) -> None:
    """Fork a server for each who asks."""
    sys.path.insert(0, str(Path(__file__).parent))
    from llama_server import arguments, imported

    imported()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        while True:
            line, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _attend(line, arguments)
            line.close()


def _attend(line: socket.socket, arguments: object) -> None:
    """In a process of its own: fork the server, and tell its end, or end it when nobody listens."""
    size, handles, *_ = socket.recv_fds(line, 4, 2)
    asked = json.loads(_all(line, int.from_bytes(size, "big")))
    server = os.fork()
    if server == 0:
        line.close()
        for number, handle in enumerate(handles, 1):
            os.dup2(handle, number)
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        sys.argv = ["edge-llm", *arguments(asked["arguments"])]  # type: ignore[operator]
        print("edge-llm", *sys.argv[1:], file=sys.stderr, flush=True)
        from edge_llm.__main__ import main

        try:
            main()
        except SystemExit as ended:
            sys.stdout.flush()
            os._exit(ended.code if isinstance(ended.code, int) else 1)
        os._exit(0)
    threading.Thread(target=_end_with, args=(line, server), daemon=True).start()
    _, status = os.waitpid(server, 0)
    line.sendall(max(0, os.waitstatus_to_exitcode(status)).to_bytes(4, "big"))
    os._exit(0)


def _end_with(line: socket.socket, server: int) -> None:
    line.recv(1)
    os.kill(server, signal.SIGKILL)


def _all(line: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (piece := line.recv(size - len(found))):
        found += piece
    return found


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        sys.exit(start(sys.argv[2], sys.argv[3:]))
