"""A crowd of clients for a server of several models; by hand: `python tests/pool_load.py --seconds 300`."""

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from model_files import tiny_config, write_model

from edge_llm.config import GenerationParams, RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.opening.load import load_engine, plan_of
from edge_llm.progress import byte_size

NAMES = ("one", "two", "three")
PROMPTS = tuple(f"Once upon a time number {number}" for number in range(8))
TOKENS = 24
PAGES = "2MiB"


def make_models(folder):
    """Three small models that say different things, imported as `NAMES`; (what each says to each prompt, bytes that hold two).

    The words are those of each model alone, on one thread.
    """
    words, largest = {}, 0
    for seed, name in enumerate(NAMES):
        source = write_model(folder / name, tiny_config(), seed=seed)
        import_model(source, name)
        runtime = RuntimeConfig(threads=1, kv_memory=PAGES)
        largest = max(largest, plan_of(name, runtime).memory.main)
        engine = load_engine(name, runtime)
        params = GenerationParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
        for prompt in PROMPTS:
            words[name, prompt] = engine.answer(engine.text_request(prompt, params)).text
    assert len(set(words.values())) == len(words), "each says something else"
    return words, 5 * largest // 2


def options_of(budget):
    """Those of the server, on two threads."""
    return ("--threads", "2", "--kv-memory", PAGES, "--models-memory", str(budget), "--prefix-cache", "0", "--quiet")


@dataclass
class Found:
    """What came of the requests."""

    ends: Counter = field(default_factory=Counter)
    """By ``whole`` and ``left``."""
    wrong: list = field(default_factory=list)
    memory: list = field(default_factory=list)
    """(seconds, bytes) of the server's process, now and then."""


def resident(process):
    """Bytes of memory that the process of this number has."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def ask(client, chance, words, found):
    """One stream, which its client may leave at any event; what it says is compared."""
    name, prompt = chance.choice([*words])
    leaves = chance.randrange(1, 12) if chance.random() < 0.25 else None
    body = {"model": name, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
    text, reasons, dones, seen = "", [], 0, 0
    async with client.stream("POST", "/v1/completions", json=body) as reply:
        answerer = reply.headers.get("x-edge-llm-model")
        async for line in reply.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                dones += 1
                continue
            choice = (json.loads(line[6:]).get("choices") or [{}])[0]
            text += choice.get("text") or ""
            reasons += [choice["finish_reason"]] if choice.get("finish_reason") else []
            seen += 1
            if seen == leaves:
                break
    whole = text == words[name, prompt] and reasons == ["length"] and dones == 1
    part = leaves is not None and words[name, prompt].startswith(text) and dones <= 1
    if reply.status_code != 200 or answerer != name or not (whole or part):
        found.wrong.append((name, prompt, reply.status_code, answerer, text, reasons, dones))
    found.ends["whole" if whole else "left"] += 1


async def crowd(url, process, words, streams, requests, seconds, seed=0):
    """``requests`` of ``streams`` clients at a time, or as many as go in ``seconds``; returns what came of them."""
    found, chance, left, began = Found(), random.Random(seed), requests, time.monotonic()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=streams)

    async def one():
        nonlocal left
        while left > 0 and time.monotonic() - began < seconds:
            left -= 1
            if chance.random() < 0.05:  # leaves before there is any answer
                asking = asyncio.ensure_future(ask(client, chance, words, found))
                await asyncio.wait({asking}, timeout=chance.random() * 0.2)
                if not asking.done():
                    asking.cancel()
                    found.ends["left"] += 1
                await asyncio.gather(asking, return_exceptions=True)
            else:
                await ask(client, chance, words, found)

    async def watch():
        while True:
            found.memory.append((time.monotonic() - began, resident(process)))
            await asyncio.sleep(0.5)

    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        watching = asyncio.ensure_future(watch())
        await asyncio.gather(*(one() for _ in range(streams)))
        watching.cancel()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--streams", type=int, default=128)
    parser.add_argument("--requests", type=int, default=10**9)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDGE_LLM_HOME"] = folder
        from test_server_run import served

        words, budget = make_models(Path(folder) / "sources")
        with served(*options_of(budget), model=None) as (process, url):
            found = asyncio.run(crowd(url, process.pid, words, asked.streams, asked.requests, asked.seconds))
            for share in range(11):
                seconds, nbytes = found.memory[(len(found.memory) - 1) * share // 10]
                print(f"{seconds:6.1f} s  {byte_size(nbytes)}")
            print(dict(found.ends), f"wrong: {len(found.wrong)}", found.wrong[:3])
            metrics = httpx.get(f"{url}/metrics").text.splitlines()
            print("\n".join(line for line in metrics if line.startswith("edge_llm_requests_total")))


if __name__ == "__main__":
    main()
