"""The process around every command: Ctrl-C at any moment, and standard streams that are closed, full or broken."""

import gc
import os
import signal
import subprocess
import sys
import time

import click
import pytest

pytestmark = pytest.mark.thorough(file=2)

PREPARED = """
from edge_llm.cli import process
process.prepare()
print("up", flush=True)
from edge_llm.__main__ import main
main()
"""
"""The command with a sign of life: before it, Ctrl-C is the interpreter's own."""
COMMANDS = {
    "run": ["run", "builtin", "Tell me a story", "-n", "900", "--ignore-eos"],
    "chat": ["chat", "-n", "900"],
    "bench": ["bench", "--threads", "1", "-r", "200"],
    "import": ["import", "{model}", "--name", "again"],
    "list": ["list"],
    "serve": ["serve", "--port", "0"],
}


def start(arguments, **options):
    """The command as a process that has Ctrl-C as a terminal gives it, whatever the tests were started with."""
    return subprocess.Popen(
        [sys.executable, "-c", PREPARED, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **options,
    )


def finished(process, seconds=120):
    """(exit code, stderr) of a process that ends by itself."""
    try:
        _, error = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, error


@pytest.mark.thorough(keep=4)
@pytest.mark.parametrize("delay", [0.0, 0.03, 0.1, 0.25, 0.6, 1.2])
@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_at_any_moment_is_130_without_a_traceback(tiny_model, command, delay):
    """Three of them, as impatient people send them."""
    model = tiny_model(num_hidden_layers=16)  # whose import lasts longer than the longest delay
    arguments = [part.format(model=model) for part in COMMANDS[command]]
    with start(arguments, stdin=subprocess.PIPE) as process:
        if command == "chat":
            process.stdin.write("Tell me a story\n" * 99)
            process.stdin.flush()
        process.stdout.readline()
        time.sleep(delay)
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        code, error = finished(process)
    assert "Traceback" not in error
    assert "Interrupt" not in error
    if command == "serve":
        assert code == (0 if "Serving" in error else 130)
    elif command == "list":
        assert code in (0, 130)  # it may have ended before
    elif command != "chat":
        assert code == 130
    else:
        assert code in (0, 130)  # Ctrl-C stops an answer of a conversation, which the end of the input ends


def test_ctrl_c_in_a_destructor_counts():
    """Where Python cannot raise it, it would be printed and forgotten."""
    script = """
import signal, time
from edge_llm.cli import process
process.prepare()
process.interrupts.running = True
class Late:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
        time.sleep(0)
Late()
time.sleep(120)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "")


def test_who_ignores_ctrl_c_goes_on_doing_so():
    """As under `nohup`, or in the background of a script."""
    script = "import signal; from edge_llm.cli import process; process.prepare(); signal.raise_signal(2); process.leave(7)"
    command = [sys.executable, "-c", script]
    ignoring = subprocess.run(command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN), timeout=60)
    assert ignoring.returncode == 7


def in_shell(command, **options):
    """(exit code, stderr) of ``edge-llm command`` in a shell, which can close streams."""
    line = ["bash", "-c", f"exec {sys.executable} -m edge_llm {command}"]
    found = subprocess.run(line, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60, **options)
    return found.returncode, found.stderr


@pytest.mark.thorough(keep=4)
@pytest.mark.parametrize("command", ["run builtin hi -n 3", "run builtin hi -n 3 --json", "--help", "show builtin"])
@pytest.mark.parametrize(("stream", "words"), [(">&-", "descriptor"), (">/dev/full", "space")])
def test_a_stdout_that_takes_nothing_is_one_line(command, stream, words):
    code, error = in_shell(f"{command} {stream}")
    assert code == 1
    assert words in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.thorough(keep=3)
@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full", "2>&- <&-"])
@pytest.mark.parametrize(("command", "code"), [("run builtin hi -n 3", 0), ("run --no-such-option", 2), ("show nothing", 1)])
def test_a_stderr_that_takes_nothing_changes_no_exit_code(command, code, streams):
    assert in_shell(f"{command} {streams}", stdout=subprocess.DEVNULL) == (code, "")


def test_a_closed_stream_gives_its_number_to_no_file_of_ours():
    script = "from edge_llm.cli import process; process.prepare(); import os; os._exit(os.open('/', 0) < 3)"
    assert subprocess.run(["bash", "-c", f'exec {sys.executable} -c "{script}" <&- >&- 2>&-']).returncode == 0


def test_the_end_does_not_wait_for_other_threads():
    """A thread in native code would not survive the interpreter's end around it."""
    script = """
import threading, time
from edge_llm.cli import process
threading.Thread(target=lambda: time.sleep(120)).start()
print("kept", end="")
process.leave(5)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=os.environ)
    assert (found.returncode, found.stdout) == (5, "kept")


def test_the_chat_looks_for_garbage_from_its_first_frame_on(monkeypatch, tmp_path):
    """Looks while it is loaded find nothing, and take a tenth of the time to the first frame."""
    from edge_llm.chats.settings import ChatSettings
    from edge_llm.cli.chat import _full_screen
    from edge_llm.tui.app import ChatApp

    monkeypatch.setenv("EDGE_LLM_HOME", str(tmp_path))
    seen, thresholds = [], gc.get_threshold()

    def run(app):
        seen.append(gc.isenabled())
        app._open_store()[0].close()  # the app opens its chats behind the first frame
        seen.append(gc.isenabled())

    monkeypatch.setattr(ChatApp, "run", run)
    try:
        with pytest.raises(click.exceptions.Exit) as left:
            _full_screen(lambda: None, ChatSettings(), here=False, new=True)
    finally:
        gc.enable()
        gc.unfreeze()
        gc.set_threshold(*thresholds)
    assert (left.value.exit_code, seen) == (0, [False, True])
