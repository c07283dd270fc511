"""`edge-llm ps` and `stop`: the servers that run for this user."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import click

from edge_llm.cli.terminal import note, say, say_json
from edge_llm.cli.values import SERVER
from edge_llm.errors import Unavailable, UsageError
from edge_llm.files import shown
from edge_llm.server.running import Running, nameable, running

ASK_SECONDS = 1.0
"""How long a server has to say how it is."""
GRACE_SECONDS = 10.0
"""What a server may take beyond its own --drain."""
SAY_SECONDS = 1.0
"""Who waits longer is told what for."""


@click.command("ps")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def ps_command(as_json: bool) -> None:
    """List the servers (`edge-llm serve`) that run for this user, and their models."""
    servers = running()
    rows = [_row(server) for server in servers]
    if as_json:
        say_json(rows)
        return
    if not rows:
        note("no server is running; `edge-llm serve MODEL` starts one")
        return
    width = max(5, *(len(shown(row["model"])) for row in rows))
    address = max(7, *(len(row["url"]) for row in rows))
    say(f"{'MODEL'.ljust(width)}  {'PID':>7}  {'ADDRESS'.ljust(address)}  {'STATE':12}  {'MEMORY':>10}  SINCE")
    for row in rows:
        memory = "-" if row["memory_bytes"] is None else f"{row['memory_bytes'] / 2**20:.0f} MiB"
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["since"]))
        name = shown(row["model"]).ljust(width)
        say(f"{name}  {row['pid']:>7}  {row['url'].ljust(address)}  {row['state']:12}  {memory:>10}  {since}")


@click.command("stop")
@click.argument("servers", type=SERVER, nargs=-1, metavar="[SERVER]...")
@click.option("--all", "everyone", is_flag=True, help="Stop every server of this user.")
@click.option(
    "--now", is_flag=True, help="Cut off running answers; default: they may end, in the time that serve --drain gives."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def stop_command(servers: tuple[str, ...], everyone: bool, now: bool, as_json: bool) -> None:
    """Stop SERVER: the name of its model, its port, or its process id.  Without SERVER: the one that runs.

    `edge-llm ps` lists them.  Waits until they have ended.
    """
    chosen = _chosen(running(), servers, everyone)
    endings = [(server, server.ask_to_end()) for server in chosen]
    stopped: list[dict[str, Any]] = []
    for server, ending in endings:
        if now:
            time.sleep(0.1)  # two signals that come together are one
            ending.ask()
        ended = ending.wait(SAY_SECONDS)
        if not ended:
            note(f"waiting for the answers of {nameable(server)} to end; Ctrl-C waits no longer")
            ended = ending.wait(server.drain_seconds + GRACE_SECONDS)
        ending.close()
        stopped.append({"model": server.names[0], "pid": server.pid, "url": server.url, "stopped": ended})
        if not as_json:
            note(f"stopped {nameable(server)}" if ended else f"{nameable(server)} has not ended yet")
    if as_json:
        say_json(stopped)
    if late := [row["pid"] for row in stopped if not row["stopped"]]:
        raise Unavailable(f"still running: {', '.join(map(str, late))}; `edge-llm stop --now` cuts answers off")


def _chosen(servers: Sequence[Running], wanted: Sequence[str], everyone: bool) -> list[Running]:
    """The servers that are to end, each once.  Raises `UsageError` where it is not clear which."""
    if everyone:
        if wanted:
            raise UsageError("--all stops every server; leave the names out", param="everyone")
        return list(servers)
    if not servers:
        raise Unavailable("no server is running; `edge-llm ps` lists those that do")
    if not wanted:
        if len(servers) > 1:
            raise UsageError(f"{len(servers)} servers are running: {_ports(servers)}; name one, or give --all", param="servers")
        return list(servers)
    return list(dict.fromkeys(_one(servers, name) for name in wanted))


def _one(servers: Sequence[Running], wanted: str) -> Running:
    found = [server for server in servers if wanted in (*server.names, str(server.port), str(server.pid))]
    if not found:
        raise Unavailable(f"no server `{shown(wanted)}` is running; there are: {_ports(servers)}")
    if len(found) > 1:
        raise UsageError(f"several servers are `{shown(wanted)}`: {_ports(found)}; name one by its port", param="servers")
    return found[0]


def _ports(servers: Sequence[Running]) -> str:
    return ", ".join(f"`{shown(server.names[0])}` at port {server.port}" for server in servers)


def _row(server: Running) -> dict[str, Any]:
    return {
        "model": server.names[0],
        "aliases": list(server.names[1:]),
        "pid": server.pid,
        "url": server.url,
        "state": _state(server),
        "memory_bytes": server.memory,
        "since": server.since,
    }


def _state(server: Running) -> str:
    """``ready``, ``loading 40%``, ``error``, or ``no answer``."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=ASK_SECONDS)
    try:
        connection.request("GET", "/health")
        reply = connection.getresponse()
        found = json.loads(reply.read(1 << 16))
        if found["status"] == "loading":
            return f"loading {found['progress']['fraction']:.0%}"
        return "ready" if found["status"] == "ok" else "error"
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return "no answer"
    finally:
        connection.close()
