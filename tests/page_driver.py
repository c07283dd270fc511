"""What tests of the chat page share: a server whose answers the test writes, and what a person does on the page."""

import contextlib
import copy
import json
from pathlib import Path

from serving import HandService, builtin_engine, end, hosted, serving

from edge_llm.decoding.defaults import generation_defaults
from edge_llm.engine.request import Delta
from edge_llm.text.chat import ChatTemplate

TEMPLATE = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}{{ '' if true else '<think></think>' }}"
HELPERS = Path(__file__).with_name("page_helpers.js").read_text()
IDLE = "tested.idle()"
ORIGINS = 96


def page_engine(raw=None):
    """The built-in model, whose prompts can be read as what was asked; ``raw``: what its author says of sampling."""
    engine = copy.copy(builtin_engine())
    engine.template = ChatTemplate(TEMPLATE)
    if raw is not None:
        found = generation_defaults(raw)
        engine.defaults, engine.served = found.params, found.served
    return engine


def hand_service(engine):
    """A service whose streams the test fills."""
    service = HandService()
    service.engine = engine
    return service


class PageServer:
    """One server for all tests: each gets an address of its own, for which the browser has kept nothing yet."""

    def __init__(self, stack):
        self.engine = page_engine()
        self.host = hosted(HandService(), self.engine)
        self._urls = iter(stack.enter_context(serving(self.host, ports=ORIGINS)))

    @contextlib.contextmanager
    def fresh(self):
        """A service, and the address at which its page is."""
        service = hand_service(self.engine)
        service.url = f"{next(self._urls)}/"
        self.host.start(self.engine, service)
        yield service
        service.close(drain_seconds=0)


def ask(tab, text):
    tab.run("document.querySelector('#text').focus()")
    tab.type(text)
    tab.press("Enter")


def answer(service, number, *texts, reason="stop"):
    stream = service.wait_for(number)
    for text in texts:
        stream.put(Delta(text, (1,)))
    stream.put(end(reason))


def asked(service, number):
    return service.engine.tokenizer.decode(service.wait_for(number).request.prompt)


def shown(tab):
    """What the messages on the page say, (who, text)."""
    return [(who, text) for who, text in tab.run("tested.shown()")]


def talk(tab, service, number, question, *texts, reason="stop"):
    """A question, and its whole answer."""
    ask(tab, question)
    answer(service, number, *texts, reason=reason)
    tab.wait(f"document.querySelectorAll('article.assistant').length && {IDLE}")


def begun(tab, service, number, question, text):
    """A question, and an answer that has begun with ``text``; the stream of what follows."""
    ask(tab, question)
    stream = service.wait_for(number)
    stream.put(Delta(text, (1,)))
    tab.wait(f"tested.all('article.assistant .body').at(-1)?.innerText === {json.dumps(text)}")
    return stream


def do(tab, label):
    """Press the last button of this name below a message."""
    button = f"tested.foot({json.dumps(label)})"
    tab.wait(f"{button} !== undefined")
    tab.run(f"{button}.click()")


def attach(tab, name, data):
    tab.run(f"tested.attach({json.dumps(name)}, {list(data)})")
