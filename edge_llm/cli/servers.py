"""`edge-llm ps` and `stop`: the servers that run for this user, and the models that they have loaded."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from edge_llm.cli.terminal import note, say, say_json
from edge_llm.cli.values import SERVER
from edge_llm.errors import Unavailable, UsageError
from edge_llm.files import shown
from edge_llm.server.inquiry import HeldModel, held_models, state_of, unload
from edge_llm.server.running import Ending, Running, nameable, running

GRACE_SECONDS = 10.0
"""What a server may take beyond its own --drain."""
SAY_SECONDS = 1.0
"""Who waits longer is told what for."""


@click.command("ps")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def ps_command(as_json: bool) -> None:
    """List the servers (`edge-llm serve`) that run for this user, and below one of every model those that are loaded.

    The memory of a server is what its process has resident now; that of a loaded model is the most that its plan allows it.
    """
    servers = running()
    rows = [_row(server) for server in servers]
    if as_json:
        say_json(rows)
        return
    if not rows:
        note("no server is running; `edge-llm serve MODEL` starts one")
        return
    for line in _table([cells for row in rows for cells in _cells(row)]):
        say(line)


def _cells(row: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A line for the server of ``row``, and one for each model of many that it has loaded."""
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["since"]))
    lines: list[tuple[str, ...]] = []
    lines.append((shown(row["model"]), str(row["pid"]), row["url"], row["state"], _mebibytes(row["memory_bytes"]), since))
    for model in row.get("models", ()):
        until = model["until"]
        stays = "stays" if until is None else f"until {time.strftime('%H:%M:%S', time.localtime(until))}"
        lines.append((f"  {shown(model['name'])}", "", "", shown(model["state"]), _most(model["memory_bytes"]), stays))
    return lines


def _table(lines: Sequence[tuple[str, ...]]) -> list[str]:
    """``lines`` in columns below their titles, numbers to the right."""
    head = ("MODEL", "PID", "ADDRESS", "STATE", "MEMORY", "SINCE")
    widths = [max(len(line[column]) for line in [head, *lines]) for column in range(len(head))]
    found = []
    for line in [head, *lines]:
        name, number, *texts, memory, since = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        number, memory = number.strip().rjust(widths[1]), memory.strip().rjust(widths[4])
        found.append("  ".join([name, number, *texts, memory, since]).rstrip())
    return found


def _mebibytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**20:.0f} MiB"


def _most(count: int | None) -> str:
    return "-" if count is None else f"up to {_mebibytes(count)}"


@click.command("stop")
@click.argument("servers", type=SERVER, nargs=-1, metavar="[SERVER]...")
@click.option("--all", "everyone", is_flag=True, help="Stop every server of this user.")
@click.option(
    "--now", is_flag=True, help="Cut off running answers; default: they may end, in the time that serve --drain gives."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def stop_command(servers: tuple[str, ...], everyone: bool, now: bool, as_json: bool) -> None:
    """Stop SERVER: the name of its model, its port, or its process id.  Without SERVER: the one that runs.

    `edge-llm ps` lists them.  Waits until they have ended.  The name of a model that a server of many has loaded unloads
    that model alone, when its answers have ended.
    """
    chosen = _chosen(running(), servers, everyone)
    if now and any(isinstance(one, _Loaded) for one in chosen):
        raise UsageError("--now cuts off the answers of a server; a model is unloaded when its own have ended", param="now")
    endings = {one.pid: one.ask_to_end() for one in chosen if isinstance(one, Running)}
    rows: list[dict[str, Any]] = []
    for one in chosen:
        if isinstance(one, Running):
            done, said = _ended(one, endings[one.pid], now=now), nameable(one)
            said = f"stopped {said}" if done else f"{said} has not ended yet"
            rows.append({"model": one.names[0], "pid": one.pid, "url": one.url, "stopped": done})
        else:
            done, said = _unloaded(one), f"`{shown(one.name)}` of {nameable(one.server)}"
            said = f"unloaded {said}" if done else f"{said} still answers; it is unloaded when that ends"
            rows.append({"model": one.name, "pid": one.server.pid, "url": one.server.url, "unloaded": done})
        if not as_json:
            note(said)
    if as_json:
        say_json(rows)
    _refuse_late(rows)


@dataclass(frozen=True)
class _Loaded:
    """A model that ``server``, one of every model, has loaded."""

    server: Running
    name: str


def _ended(server: Running, ending: Ending, *, now: bool) -> bool:
    """Whether ``server``, which was asked to end, has."""
    if now:
        time.sleep(0.1)  # two signals that come together are one
        ending.ask()
    ended = ending.wait(SAY_SECONDS)
    if not ended:
        note(f"waiting for the answers of {nameable(server)} to end; Ctrl-C waits no longer")
        ended = ending.wait(server.drain_seconds + GRACE_SECONDS)
    ending.close()
    return ended


def _unloaded(model: _Loaded) -> bool:
    """Whether ``model`` is unloaded, in the time that its server would have to end."""

    def say_what_is_awaited() -> None:
        note(f"waiting for the answers of `{shown(model.name)}` to end; Ctrl-C waits no longer, it goes all the same")

    return unload(model.server, model.name, SAY_SECONDS, say_what_is_awaited, model.server.drain_seconds + GRACE_SECONDS)


def _refuse_late(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raises `Unavailable` if anything that was to end has not."""
    if late := [str(row["pid"]) for row in rows if not row.get("stopped", True)]:
        raise Unavailable(f"still running: {', '.join(late)}; `edge-llm stop --now` cuts answers off")
    if late := [f"`{shown(row['model'])}`" for row in rows if not row.get("unloaded", True)]:
        raise Unavailable(f"still loaded: {', '.join(late)}; `edge-llm ps` says when not any more")


def _chosen(servers: Sequence[Running], wanted: Sequence[str], everyone: bool) -> list[Running | _Loaded]:
    """What is to end, each once.  Raises `UsageError` where it is not clear which."""
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
    return list(dict.fromkeys(one for name in wanted for one in _called(servers, name)))


def _called(servers: Sequence[Running], wanted: str) -> list[Running | _Loaded]:
    """The server that is ``wanted``; else the model of that name, in each server of every model that has it loaded."""
    found = [server for server in servers if wanted in (*server.names, str(server.port), str(server.pid))]
    if len(found) > 1:
        raise UsageError(f"several servers are `{shown(wanted)}`: {_ports(found)}; name one by its port", param="servers")
    if found:
        return list(found)
    loaded = [_Loaded(server, one.name) for server in servers for one in held_models(server)]
    if named := [one for one in loaded if one.name == wanted]:
        return list(named)
    others = f", and the loaded models {', '.join(f'`{shown(one.name)}`' for one in loaded)}" if loaded else ""
    raise Unavailable(f"no server `{shown(wanted)}` is running; there are: {_ports(servers)}{others}")


def _ports(servers: Sequence[Running]) -> str:
    return ", ".join(f"`{shown(server.names[0])}` at port {server.port}" for server in servers)


def _row(server: Running) -> dict[str, Any]:
    row = {
        "model": server.names[0],
        "aliases": list(server.names[1:]),
        "pid": server.pid,
        "url": server.url,
        "state": state_of(server),
        "memory_bytes": server.memory,
        "since": server.since,
    }
    return row | ({"models": list(map(_model_row, held_models(server)))} if server.serves_every_model else {})


def _model_row(model: HeldModel) -> dict[str, Any]:
    return {"name": model.name, "state": model.state, "memory_bytes": model.nbytes, "until": model.until}
