"""An OpenAI-compatible server whose answers a test gives by hand, for chats in a process of their own.

    with ScriptedServer() as server:
        ...                                      # the chat asks
        answer = server.next()                   # `answer.body` is what it asked
        answer.say("Hello", " you")
        answer.end()                             # or `drop`: the connection breaks off
"""

import contextlib
import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECONDS = 240.0


class Answer:
    """An answer on its way."""

    def __init__(self, body):
        self.body = body
        self.lost = threading.Event()
        """The chat went away: it was stopped, or it ended."""
        self._events = queue.Queue()

    def say(self, *texts):
        for text in texts:
            self._events.put({"choices": [{"index": 0, "delta": {"content": text}}]})

    def think(self, text):
        self._events.put({"choices": [{"index": 0, "delta": {"reasoning_content": text}}]})

    def end(self, reason="stop"):
        self._events.put({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        self._events.put({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}})
        self._events.put(None)

    def drop(self):
        """Break off in the middle."""
        self._events.put(None)

    def events(self):
        """What is to be sent, in lines; a comment when there is nothing, to learn whether anybody listens."""
        while True:
            try:
                event = self._events.get(timeout=0.05)
            except queue.Empty:
                yield b": nothing yet\n\n"
                continue
            if event is None:
                return
            yield b"data: " + json.dumps(event).encode() + b"\n\n"
            if "usage" in event:
                yield b"data: [DONE]\n\n"


class ScriptedServer:
    """Serves the models ``names`` on a port of this machine."""

    def __init__(self, *names):
        self.names = names or ("scripted",)
        self.rows = {}
        """What the list of models says of each beside its name."""
        self._asked = queue.Queue()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Nobody listens any more."""
        self._server.shutdown()
        self._server.server_close()

    def next(self):
        """The next answer that is asked for."""
        return self._asked.get(timeout=SECONDS)

    def asked(self, answer):
        self._asked.put(answer)


def _handler(owner):
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            rows = [{"id": name, "object": "model", **owner.rows.get(name, {})} for name in owner.names]
            body = json.dumps({"object": "list", "data": rows}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            answer = Answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            owner.asked(answer)
            try:
                for event in answer.events():
                    self.wfile.write(event)
            except OSError:
                answer.lost.set()
            finally:
                with contextlib.suppress(OSError):
                    self.wfile.flush()

    return Handler
