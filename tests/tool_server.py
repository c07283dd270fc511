"""A small MCP server, with tools that do what servers should not: `python tool_server.py [HOW]`.

On standard input and output, or with `http PORT` on loopback.
"""

import os
import sys
import time

HOW = sys.argv[1] if len(sys.argv) > 1 else ""
if HOW.startswith("stubborn"):  # does not hear that it is to end, nor do its children, of which one has left home
    import signal
    import subprocess

    for heard in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(heard, signal.SIG_IGN)
    for _ in range(2):
        subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "601"])
        os._exit(0)
    if HOW == "stubborn silence":
        while True:
            time.sleep(600)
if HOW == "dies":
    print("no \x1b[31mlicence\x1b[0m for you", file=sys.stderr)
    sys.exit(3)
if HOW == "hangs":
    time.sleep(600)
if HOW == "rubbish":
    for _ in range(100):
        print("\x1b]0;owned\x07 {not json")
    sys.stdout.flush()
    sys.exit(0)
if HOW == "floods":
    while True:
        os.write(1, b"x" * (1 << 20))

if HOW == "refuses":  # to begin, and tells why
    import json

    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked:
            why = {"code": 7, "message": "the lease timed out, renew it"}
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": why}), flush=True)

if HOW == "pages":  # of tools, without end
    import json

    for line in sys.stdin:
        asked = json.loads(line)
        told = {"tools": [], "nextCursor": "more"}
        if asked.get("method") == "initialize":
            info = {"name": "pages", "version": "1"}
            told = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
        if "id" in asked:
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": told}), flush=True)

from mcp.server import MCPServer  # noqa: E402

server = MCPServer("a small server")


@server.tool()
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


@server.tool()
def environment(name: str) -> str:
    """What a variable of the server's environment is."""
    return os.environ.get(name, "nothing")


@server.tool()
def process() -> str:
    """The id of the server's process."""
    return str(os.getpid())


@server.tool()
def big(characters: int) -> str:
    """A long text."""
    return "ab" * (characters // 2)


@server.tool()
def colours() -> str:
    """A text that talks to the terminal."""
    return "\x1b[31mred\x1b[0m \x1b]0;owned\x07 \x9b2J \u202etxt [bold]markup[/bold] \r\nnext"


@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("no such \x1b[1mnote")


@server.tool()
def closed() -> str:
    """Fails with the words of a connection that has ended."""
    from mcp import MCPError

    raise MCPError(1, "The door is closed, the time timed out")


@server.tool()
def sleep(seconds: float) -> str:
    """Takes long."""
    time.sleep(seconds)
    return "awake"


@server.tool()
def die() -> str:
    """Ends the server in the middle."""
    print("out of luck", file=sys.stderr, flush=True)
    os._exit(1)


if HOW == "http":
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
else:
    server.run()
