"""The welcome of an empty chat, and a start whose last chat had a model that nobody asks for now."""

import pytest
from chat_driver import drive
from scripted_provider import ScriptedCatalogue, ScriptedProvider

from edge_llm.chats.settings import ChatSettings
from edge_llm.providers.base import Facts
from edge_llm.tui.screens.models import ModelPicker
from edge_llm.tui.welcome import PROMPTS, TOY_PROMPTS, count

pytestmark = pytest.mark.thorough(file=3)

SERVER = "http://127.0.0.1:1/v1"
REAL = Facts("smol", 8192, "device: host", parameters=134_515_008, precision="int8", weights=156_237_824)
TOY = Facts("builtin", 1024, "device: host", parameters=2_263_104, precision="int8", weights=2_359_296, is_toy=True)


def test_it_says_what_this_is_and_the_first_prompt_takes_its_place(tmp_path):
    async def talk(chat):
        for part in ("edge-llm", "135M parameters · int8 · context 8192 · 149 MiB of weights", *PROMPTS):
            await chat.until(lambda part=part: part in chat.screen)
        assert "toy" not in chat.screen
        await chat.pilot.click(chat.app.query(".try")[1])
        await chat.until(lambda: chat.typed == PROMPTS[1])
        assert chat.app.prompt.area.has_focus
        await chat.press("alt+3")
        await chat.until(lambda: chat.typed == PROMPTS[2])
        await chat.press("enter")
        await chat.until(lambda: "You said: " in chat.screen)
        await chat.until(lambda: PROMPTS[0] not in chat.screen)
        await chat.press("alt+1")
        await chat.settle()
        assert chat.typed == "", "the key means nothing then"
        await chat.press("ctrl+n")
        await chat.until(lambda: PROMPTS[0] in chat.screen)

    drive(talk, tmp_path, ScriptedProvider(facts=REAL))


@pytest.mark.parametrize("size", [(80, 24), (100, 24), (120, 40)])
def test_on_the_first_start_all_of_it_is_seen(tmp_path, size):
    async def talk(chat):
        for prompt in TOY_PROMPTS:
            await chat.until(lambda prompt=prompt: prompt in chat.screen)

    drive(talk, tmp_path, ScriptedProvider(facts=TOY), size=size)


def test_a_toy_is_called_one_and_a_key_and_a_click_get_a_real_model(tmp_path):
    async def talk(chat):
        await chat.until(lambda: "This is a 2M toy. F4 gets a real model." in chat.screen)
        assert TOY_PROMPTS[0] in chat.screen
        await chat.pilot.click("#welcome-toy")
        await chat.opened(ModelPicker)

    drive(talk, tmp_path, ScriptedProvider(facts=TOY))


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (200, 50)])
def test_it_fits_any_terminal(tmp_path, size):
    async def talk(chat):
        await chat.until(lambda: "toy" in chat.screen)
        assert "Ask anything" in chat.screen
        assert max(len(line) for line in chat.screen.splitlines()) <= size[0]

    drive(talk, tmp_path, ScriptedProvider(facts=TOY), size=size)


def test_it_says_that_no_model_is_there(tmp_path):
    async def talk(chat):
        await chat.until(lambda: "No model is loaded. F4 chooses one." in chat.screen)

    drive(talk, tmp_path, catalogue=ScriptedCatalogue(loads={"scripted": [RuntimeError("odd")]}), ready=False)


@pytest.mark.parametrize(("parameters", "told"), [(2_263_104, "2M"), (134_515_008, "135M"), (1_543_714_304, "1.5B")])
def test_parameters_are_told_as_people_call_them(parameters, told):
    assert count(parameters) == told


def test_chats_of_this_machine_and_of_each_server_go_on_by_themselves(tmp_path):
    """What one opens is the last chat of the same place, whose model is there; nobody else's is looked for."""
    async def local(chat):
        await chat.send("/model builtin")
        await chat.settle()
        await chat.ask("Local talk")

    drive(local, tmp_path, catalogue=ScriptedCatalogue({"builtin": ScriptedProvider()}))
    facts = Facts("far", None, f"server: {SERVER}", host="127.0.0.1:1")
    far = ScriptedCatalogue({"far": ScriptedProvider(facts=facts)}, can_fetch=False)

    async def remote(chat):
        await chat.until(lambda: chat.session.provider is not None)
        await chat.settle()
        assert chat.notices == []
        assert chat.said == []
        await chat.until(lambda: "far at 127.0.0.1:1" in chat.screen and f"Chat with a server: {SERVER}" in chat.screen)
        await chat.ask("Far talk")
        assert chat.said == [("user", "Far talk"), ("assistant", "You said: Far talk")]
        assert chat.titles == ["Local talk", "Far talk"]

    drive(remote, tmp_path, catalogue=far, ready=False, settings=ChatSettings(server=SERVER))

    async def last_of(chat, said):
        await chat.until(lambda: chat.session.provider is not None)
        await chat.settle()
        assert [text for role, text in chat.said if role == "user"] == said
        assert chat.notices == []

    for server, said in (("", ["Local talk"]), (SERVER, ["Far talk"]), (f"{SERVER}1", [])):
        here = far if server else ScriptedCatalogue({"builtin": ScriptedProvider()})
        drive(lambda chat, said=said: last_of(chat, said), tmp_path, catalogue=here, settings=ChatSettings(server=server))


def test_a_chat_that_is_opened_elsewhere_says_who_gets_what_is_sent(tmp_path):
    async def local(chat):
        await chat.ask("Local talk")

    drive(local, tmp_path)

    async def remote(chat):
        await chat.press("f3")
        await chat.until(lambda: chat.listed)
        await chat.press("enter")
        told = f"This chat is with a model of this machine; what you send now goes to the server at {SERVER}."
        await chat.until(lambda: chat.told(told))
        assert chat.session.settings.server == ""
        await chat.send("/model far")
        await chat.until(lambda: chat.session.settings.server == SERVER)

    drive(remote, tmp_path, catalogue=ScriptedCatalogue({"far": ScriptedProvider()}), settings=ChatSettings(server=SERVER))


def test_the_clock_goes_on_while_the_parts_leave(tmp_path):
    """As before they are mounted: a busy machine lets the app's clock run between."""

    async def talk(chat):
        await chat.until(lambda: "135M parameters" in chat.screen)
        await chat.app.welcome.remove_children()
        chat.session.provider = None  # so there is something new to show
        chat.app._tick()

    drive(talk, tmp_path, ScriptedProvider(facts=REAL))
