"""The prompt of the full-screen chat: keys, history, commands and their completion, attachments, settings that are set."""

import random
import stat
import sys

import pytest
from chat_driver import drive
from scripted_provider import ScriptedCatalogue, ScriptedProvider
from textual.command import CommandPalette
from textual.events import Key
from textual.widgets import Input

from edge_llm.chats.settings import SETTINGS, ChatSettings
from edge_llm.providers.base import Facts
from edge_llm.tui.commands import COMMANDS
from edge_llm.tui.screens.help import Help
from edge_llm.tui.screens.settings import SettingsForm

pytestmark = pytest.mark.thorough(file=6)


def test_enter_sends_and_other_keys_begin_a_line(tmp_path):
    provider = ScriptedProvider()

    async def talk(chat):
        await chat.press("o", "n", "e", "ctrl+j", "t", "w", "o", "shift+enter", "3")
        assert chat.typed == "one\ntwo\n3"
        await chat.press("enter")
        await chat.settle()
        assert chat.typed == ""
        assert provider.asked[0].messages[-1]["content"] == "one\ntwo\n3"
        await chat.press("enter", "space", "enter")
        await chat.settle()
        assert len(provider.asked) == 1, "nothing is no prompt"

    drive(talk, tmp_path, provider)


def test_keys_that_come_in_a_burst_are_taken_in_their_order(tmp_path):
    provider = ScriptedProvider()

    async def talk(chat):
        text = "a burst of keys, as over a slow line"
        for char in text:
            chat.app.screen.post_message(Key("space" if char == " " else char, char))
        chat.app.screen.post_message(Key("enter", "\r"))
        await chat.until(lambda: provider.asked)
        assert provider.asked[0].messages[-1]["content"] == text
        await chat.settle()
        assert chat.typed == ""

    drive(talk, tmp_path, provider)


def test_an_answer_waits_for_keys_of_the_text_and_for_no_others(tmp_path):
    async def talk(chat):
        area = chat.app.prompt.area
        for key in ("f2", "f2", "pageup", "pagedown", "ctrl+r", "ctrl+t", "escape"):
            await chat.press(key)
            assert area.typed_at == 0.0, key
        for key in ("x", "left", "ctrl+j", "backspace", "home", "ctrl+u"):
            area.typed_at = 0.0
            await chat.press(key)
            assert area.typed_at > 0.0, key

    drive(talk, tmp_path)


EDITS = {
    "ctrl+u": "\x15", "backspace": "\x7f", "left": None, "delete": None, "ctrl+w": "\x17", "home": None, "end": None,
    "up": None, "ctrl+j": "\n",
}  # fmt: skip


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("field", ["prompt", "search"])
def test_a_burst_of_letters_and_edits_writes_what_slow_typing_writes(tmp_path, field, seed):
    draw = random.Random(seed)
    edits = [key for key in EDITS if field == "prompt" or key not in ("up", "ctrl+j")]
    keys = [draw.choice(edits) if draw.random() < 0.4 else draw.choice("abcdefgh") for _ in range(60)]

    async def talk(chat):
        if field == "search":
            await chat.press("f3")
        area = chat.app.prompt.area if field == "prompt" else chat.app.chat_list.query_one(Input)
        await chat.until(lambda: area.has_focus)
        written = []
        for pause in (True, False):
            for key in keys:
                chat.app.post_message(Key(key, EDITS.get(key, key)))
                if pause:
                    await chat.taken()
            await chat.taken()
            written.append(area.text if field == "prompt" else area.value)
            area.clear()
            await chat.taken()
        assert written[0] == written[1] != ""

    drive(talk, tmp_path)


REFUSED = ["/nocommand", "two @bytes ", "two\n@bytes "]


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_sent_comes_back_before_what_is_typed_meanwhile(tmp_path, text):
    provider = ScriptedProvider()
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")

    async def talk(chat):
        await chat.write(text)
        chat.burst("enter", *"more", "left", "X")
        await chat.until(lambda: len(chat.notices) == 1)
        await chat.taken()
        assert chat.typed == f"{text}morXe"
        await chat.press("enter", "Y")
        await chat.until(lambda: len(chat.notices) == 2)
        assert chat.typed.replace("Y", "") == f"{text}morXe"
        assert provider.asked == []

    drive(talk, tmp_path, provider)


LINES = ["/export md", "/export json", "/title Two words", "/new", "/mod", "/set seed 7", "/theme nord"]


@pytest.mark.parametrize("line", LINES)
def test_a_burst_that_passes_completions_does_what_its_letters_say(tmp_path, line):
    """Every letter lists other completions; the key that ends the burst meets those of the whole line."""

    async def talk(chat):
        await chat.ask("Hello")
        for char in line:
            chat.app.screen.post_message(Key("space" if char == " " else char, char))
        chat.app.screen.post_message(Key("enter", "\r"))
        await chat.taken()
        await chat.until(lambda: chat.typed == "")
        await chat.until(lambda: not chat.works or len(chat.app.screen_stack) > 1)  # a list of models waits for its choice

    drive(talk, tmp_path)


def test_up_and_down_reach_earlier_prompts_also_of_the_last_time(tmp_path):
    async def talk(chat):
        await chat.ask("first")
        await chat.ask("second\nwith two lines")
        await chat.write("a draft")
        await chat.press("up")
        assert chat.typed == "second\nwith two lines"
        await chat.press("up")
        assert chat.typed == "second\nwith two lines", "the cursor goes up one line first"
        await chat.press("up")
        assert chat.typed == "first"
        await chat.press("up")
        assert chat.typed == "first", "there is none before"
        await chat.press("down", "down")
        assert chat.typed == "a draft"
        await chat.press("down")
        assert chat.typed == "a draft"

    drive(talk, tmp_path)

    async def again(chat):
        await chat.press("up")
        assert chat.typed == "second\nwith two lines"

    drive(again, tmp_path, resume=False)


def test_commands_are_completed(tmp_path):
    async def talk(chat):
        await chat.press("/")
        assert chat.completions[0] == "/help"
        await chat.press("r", "e")
        assert chat.completions == ["/regenerate"]
        await chat.press("backspace", "backspace", "s")
        names = [f"/{command.name}" for command in COMMANDS if command.name.startswith("s")]
        assert chat.completions == names
        await chat.press("down", "tab")
        assert chat.typed.strip() == names[1]
        await chat.write("/th")
        await chat.press("escape")
        assert chat.completions == []
        await chat.write("/thin")
        await chat.press("tab")
        assert chat.typed == "/think"
        await chat.press("space")
        await chat.until(lambda: chat.completions == ["on", "off", "low", "medium", "high", "default"])
        await chat.press("o", "f", "enter")
        await chat.settle()
        assert chat.session.settings.thinking is False
        assert chat.typed == ""
        await chat.write("/set temp")
        await chat.press("tab")
        assert chat.typed == "/set temperature "

    drive(talk, tmp_path)


def test_enter_runs_a_command_that_it_completes(tmp_path):
    async def talk(chat):
        await chat.press("/", "h", "e", "enter")
        await chat.opened(Help)
        await chat.press("escape")
        await chat.until(lambda: not isinstance(chat.app.screen, Help))
        assert chat.stored == []

    drive(talk, tmp_path)


@pytest.mark.parametrize(
    ("line", "does"),
    [
        ("/set temperature", "temperature: "),
        ("/set temperature ", "temperature: "),
        ("/set tempe", "temperature: "),
        ("/set temperature 0.5", "temperature is now: 0.5"),
        ("/set", "Settings of this chat"),
        ("/set ", "Settings of this chat"),
        ("/model qwen", "qwen"),
        ("/model ", "search, or a hub id"),
        ("/theme nord", "nord"),
    ],
)
def test_one_enter_does_what_the_line_says_whatever_is_listed(tmp_path, line, does):
    """The word that is written is meant, not a longer one that is listed with it, and nothing where none is written."""
    names = ["qwen3", "scripted", "qwen"]
    catalogue = ScriptedCatalogue({name: ScriptedProvider() for name in ["scripted", *names]})

    async def talk(chat):
        chat.session.model_names = names
        before = chat.app.theme
        await chat.press(*("space" if char == " " else char for char in line), "enter")
        assert chat.typed == ""
        if line.startswith("/theme"):
            await chat.until(lambda: chat.app.theme == does)
        elif line == "/model qwen":
            await chat.until(lambda: chat.session.provider and chat.session.provider.facts.name == does)
        else:
            await chat.until(lambda: does in chat.screen)
            assert (chat.app.theme, chat.session.settings.model) == (before, None)

    drive(talk, tmp_path, catalogue=catalogue)


def test_an_unknown_command_is_told_and_kept(tmp_path):
    provider = ScriptedProvider()

    async def talk(chat):
        await chat.send("/frobnicate the thing")
        await chat.until(lambda: chat.told("no command `/frobnicate`"))
        assert chat.typed == "/frobnicate the thing"
        for text in ("/etc/hosts is a file", "//", "/ is the root", "1/2"):
            await chat.ask(text)
            assert provider.asked[-1].messages[-1]["content"] == text
        for text, why in (("/title", "needs TEXT"), ("/new chat", "takes nothing"), ("/copy that", "takes nothing, `code`")):
            await chat.send(text)
            await chat.until(lambda why=why: chat.told(why))

    drive(talk, tmp_path, provider)


def test_every_key_of_a_command_works_while_one_writes(tmp_path):
    async def talk(chat):
        ran = []

        async def run(name, argument=""):
            ran.append(name)

        chat.app.actions.run = run
        for command in COMMANDS:
            if command.key:
                await chat.write("some text")
                await chat.press(command.key)
                await chat.until(lambda name=command.name: ran[-1:] == [name])
                assert chat.typed == "some text"

    drive(talk, tmp_path)


def test_every_command_is_in_the_help_and_those_without_words_in_the_palette(tmp_path):
    async def talk(chat):
        await chat.press("f1")
        await chat.opened(Help)
        await chat.settle()
        assert "Shift+Enter" in chat.screen
        await chat.press("q")
        await chat.until(lambda: not isinstance(chat.app.screen, Help))
        named = {command.title.lower() for command in chat.app.get_system_commands(chat.app.screen)}
        assert named == {command.name for command in COMMANDS if command.may_take_nothing}
        await chat.press("ctrl+p")
        await chat.opened(CommandPalette)
        await chat.press(*"insid")
        await chat.until(lambda: "look inside the engine" in chat.screen)
        await chat.press("enter")
        await chat.until(lambda: chat.app.inside.display)

    drive(talk, tmp_path, size=(120, 60))


def test_the_help_has_a_line_for_each_command_and_spells_keys_in_one_way(tmp_path):
    async def talk(chat):
        await chat.press("f1")
        await chat.until(lambda: "Other version" in chat.screen)
        lines = [line.strip(" │") for line in chat.screen.splitlines()]
        names = [line.split()[0] for line in lines if line.startswith("/") and not line.startswith("/ ")]
        assert names == [f"/{command.name}" for command in COMMANDS]
        first = lines.index(next(line for line in lines if line.startswith("/help")))
        assert lines[first + 1].startswith("/inside")
        assert "Ctrl+J" in chat.screen and "Ctrl+N" in chat.screen
        assert "ctrl+" not in chat.screen

    drive(talk, tmp_path, size=(120, 100))


def test_in_twelve_lines_one_sees_what_opens_and_no_notice_hides_the_prompt(tmp_path):
    async def talk(chat):
        await chat.press("f5")
        await chat.until(lambda: "temperature" in chat.screen and "what the model is told before" in chat.screen)
        await chat.press("escape")
        await chat.press("f4")
        await chat.until(lambda: "scripted" in chat.screen and "Enter selects" in chat.screen)
        await chat.press("escape")
        await chat.write("a draft")
        for number in range(9):
            chat.app.tell(f"{number} is the number of this notice, which takes two lines at least")
        await chat.until(lambda: "8 is the" in chat.screen)
        assert "a draft" in chat.screen.splitlines()[-2]
        await chat.press("escape")
        await chat.until(lambda: "is the number" not in chat.screen)
        assert chat.typed == "a draft"

    drive(talk, tmp_path, size=(40, 12))


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("size", [(40, 12), (80, 24), (120, 40)])
def test_what_is_typed_behind_the_look_inside_is_in_the_prompt(tmp_path, size):
    async def talk(chat):
        for _ in range(2):
            await chat.press("f2")
            await chat.until(lambda: chat.app.inside.is_on_screen)
            await chat.settle()
            await chat.press("f2")
            await chat.until(lambda: not chat.app.inside.is_on_screen and chat.app.focused is not None)
            await chat.press("a")
            await chat.until(lambda: chat.typed.endswith("a"))
        assert chat.typed == "aa"
        await chat.press("f2")
        await chat.until(lambda: chat.app.inside.is_on_screen)
        await chat.resize(60, 20)
        await chat.resize(120, 40)
        await chat.until(lambda: chat.app.prompt.area.is_on_screen and chat.app.focused is not None)
        await chat.press("f2")
        await chat.until(lambda: not chat.app.inside.is_on_screen and chat.app.prompt.area.has_focus)

    drive(talk, tmp_path, size=size)


def test_a_key_that_opens_something_opens_it_once(tmp_path):
    async def talk(chat):
        for key, many in (("f1", Help), ("f5", SettingsForm)):
            await chat.press(key)
            await chat.opened(many)
            await chat.press("f4", "f5", "f2")
            await chat.taken()
            assert len(chat.app.screen_stack) == 2
            await chat.press("escape")
            await chat.until(lambda: len(chat.app.screen_stack) == 1)

    drive(talk, tmp_path)


def test_keys_of_the_config_file_take_the_place_of_others(tmp_path):
    async def talk(chat):
        await chat.press("f8")
        await chat.opened(Help)
        await chat.settle()
        assert "f8" in chat.screen

    drive(talk, tmp_path, keys={"help": "f8"}, size=(120, 100))


def test_themes_are_chosen_and_a_wrong_one_is_refused(tmp_path):
    async def talk(chat):
        assert chat.app.theme == "nord"
        await chat.send("/theme dracula")
        await chat.until(lambda: chat.app.theme == "dracula")
        await chat.send("/theme [red]none[/]")
        await chat.until(lambda: chat.told("there is no theme `[red]none[/]`"))
        assert chat.app.theme == "dracula"

    drive(talk, tmp_path, theme="nord")


def test_a_theme_that_there_is_not_does_not_keep_the_chat_from_opening(tmp_path):
    async def talk(chat):
        assert chat.told("There is no theme `none`")
        await chat.ask("Hello")
        assert "You said: Hello" in chat.screen

    drive(talk, tmp_path, theme="none")


# ---- attachments


def test_a_file_is_attached_and_shown(tmp_path):
    provider = ScriptedProvider()
    (tmp_path / "notes.txt").write_text("remember [b]the[/b] milk")

    async def talk(chat):
        await chat.write("See @no")
        await chat.until(lambda: chat.completions == ["@notes.txt"])
        await chat.press("tab")
        assert chat.typed == "See @notes.txt"
        await chat.press("enter")
        await chat.until(lambda: len(chat.said) == 2)
        await chat.settle()
        assert "notes.txt  24 B" in chat.screen
        assert "remember [b]the[/b] milk" in provider.asked[0].messages[-1]["content"]
        await chat.send("/attach notes.txt")
        await chat.until(lambda: "📎 notes.txt" in chat.screen.splitlines()[-3])
        await chat.press("escape")
        await chat.until(lambda: "📎 notes.txt" not in chat.screen.splitlines()[-3])
        await chat.ask("Without")
        assert provider.asked[1].messages[-1]["content"] == "Without"

    drive(talk, tmp_path, provider)


@pytest.mark.parametrize(
    ("data", "why"), [(b"\xff\xfe", "is not a text file"), (b"x" * ((1 << 20) + 1), "can be attached")], ids=["kind", "size"]
)
def test_a_file_that_cannot_be_attached_is_told_and_the_prompt_kept(tmp_path, data, why):
    provider = ScriptedProvider()
    (tmp_path / "data").write_bytes(data)

    async def talk(chat):
        await chat.send("Read @data please")
        await chat.until(lambda: chat.told(why))
        assert chat.typed == "Read @data please"
        assert (provider.asked, chat.stored) == ([], [])

    drive(talk, tmp_path, provider)


def test_a_file_that_is_not_there_is_told_and_sent_as_text(tmp_path):
    provider = ScriptedProvider()
    (tmp_path / "notes.txt").write_text("inside")

    async def talk(chat):
        await chat.ask("@nofile.txt hello")
        assert chat.told("no file `nofile.txt`; sent as text")
        assert provider.asked[0].messages[-1]["content"] == "@nofile.txt hello"
        chat.forget_notices()
        await chat.ask("See @notes.txt, me@example.org and @someone.")
        assert chat.notices == []

    drive(talk, tmp_path, provider)


def test_an_edited_prompt_keeps_its_attachment(tmp_path):
    provider = ScriptedProvider()
    (tmp_path / "a.txt").write_text("inside")

    async def talk(chat):
        await chat.ask("Read @a.txt")
        await chat.press("ctrl+l")
        await chat.until(lambda: "Editing your" in chat.screen)
        await chat.ask("Read it aloud")
        assert "inside" in provider.asked[1].messages[-1]["content"]
        assert provider.asked[1].messages[-1]["content"].endswith("Read it aloud")

    drive(talk, tmp_path, provider)


def test_a_prompt_is_written_in_an_editor(tmp_path, monkeypatch):
    editor = tmp_path / "editor"
    editor.write_text(f"#!{sys.executable}\nimport sys\nf = open(sys.argv[1], 'a')\nf.write(' and [b]more[/b]\\n')\n")
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("VISUAL", str(editor))

    async def talk(chat):
        from contextlib import nullcontext

        chat.app.suspend = nullcontext  # a test has no terminal to give away
        await chat.write("begun")
        await chat.press("ctrl+g")
        await chat.until(lambda: chat.typed == "begun and [b]more[/b]")
        monkeypatch.setenv("VISUAL", str(tmp_path / "none"))
        await chat.press("ctrl+g")
        await chat.until(lambda: chat.told("cannot start the editor"))
        assert chat.typed == "begun and [b]more[/b]"

    drive(talk, tmp_path)


# ---- settings


def test_settings_are_set_refused_and_taken_back(tmp_path):
    provider = ScriptedProvider()

    async def talk(chat):
        await chat.send("/set temperature 0.5")
        await chat.settle()
        await chat.send("/system Be brief")
        await chat.settle()
        for wrong in ("temperature hot", "temperature -1", "top_k 1.5", "nonsense 1", "context -5", "thinking maybe"):
            before = chat.session.settings
            await chat.send(f"/set {wrong}")
            await chat.until(lambda wrong=wrong: any(wrong.split()[0] in notice for notice in chat.notices[-1:]))
            await chat.settle()
            assert chat.session.settings == before
            chat.forget_notices()
        await chat.ask("Hello")
        assert provider.asked[-1].sampling == {"temperature": 0.5}
        assert provider.asked[-1].messages[0] == {"role": "system", "content": "Be brief"}
        await chat.send("/set temperature")
        await chat.until(lambda: chat.told("temperature: 0.5 (set in this chat)"))
        await chat.send("/system")
        await chat.until(lambda: chat.told("The system message: Be brief (set in this chat)"))
        assert (chat.session.settings.value("temperature"), chat.session.settings.system) == (0.5, "Be brief")
        await chat.send("/set temperature default")
        await chat.until(lambda: chat.told("temperature is now: 0.0 (default)") and chat.told("It was: 0.5"))
        await chat.send("/system -")
        await chat.until(lambda: chat.told("The system message is now: none") and chat.told("It was: Be brief"))
        await chat.ask("Hello")
        assert provider.asked[-1].sampling == {}
        assert provider.asked[-1].messages[0]["role"] == "user"

    drive(talk, tmp_path, provider)


def test_what_holds_is_shown_with_where_it_comes_from_and_the_form_resets_it(tmp_path):
    facts = Facts("scripted", 1024, "device: host", {"top_p": 0.9})

    async def talk(chat):
        for name, told in (("top_p", "0.9 (default)"), ("top_k", "0 (default)"), ("seed", "7 (the command line)")):
            await chat.send(f"/set {name}")
            await chat.until(lambda name=name, told=told: chat.told(f"{name}: {told}"))
        await chat.send("/set min-p 0.5")
        await chat.settle()
        await chat.press("escape")  # puts the notices away
        await chat.send("/set")
        await chat.until(lambda: isinstance(chat.app.screen, SettingsForm) and "max_tokens" in chat.screen)
        form = chat.app.screen
        shown = [line.strip(" │") for line in chat.screen.splitlines() if "│" in line]
        lines = {line.split()[0]: line for line in shown if line}
        assert "0.9 (default)" in lines["top_p"]
        assert "0.0 (default)" in lines["temperature"]
        assert "1024 (as the model is loaded)" in lines["context"]
        assert "no limit" in lines["max_tokens"]
        form.query_one("#setting-min_p").focus()
        await chat.press("ctrl+r", "enter")
        await chat.until(lambda: chat.told("min_p is now: 0.0 (default)") and chat.told("It was: 0.5 (set in this chat)"))
        assert chat.session.settings.sampling == {"seed": 7}
        await chat.press("f5", "f8", "enter")
        await chat.until(lambda: chat.session.settings.sampling == {})

    drive(talk, tmp_path, ScriptedProvider(facts=facts), settings=ChatSettings(sampling={"seed": 7}))


def test_the_form_of_settings_says_all_of_every_line_in_eighty_columns(tmp_path):
    async def talk(chat):
        await chat.press("f5")
        await chat.opened(SettingsForm)
        for setting in SETTINGS:
            await chat.until(lambda setting=setting: chat.app.focused.id == f"setting-{setting.name}")
            holds = chat.app.focused.placeholder
            shown = lambda: " ".join(" ".join(line.strip(" │") for line in chat.screen.splitlines()).split())  # noqa: E731
            await chat.until(lambda: all(text in shown() for text in (setting.help, "Ctrl+R resets a line, F8 all")))  # noqa: B023
            assert f"{setting.name} {holds}" in shown()
            await chat.press("tab")

    drive(talk, tmp_path, size=(80, 24))


def test_the_form_of_settings_says_what_is_wrong_and_saves_what_is_right(tmp_path):
    provider = ScriptedProvider()

    async def talk(chat):
        await chat.ask("Hello")
        await chat.press("f5")
        await chat.opened(SettingsForm)
        form = chat.app.screen
        form.query_one("#setting-temperature").value = "warm"
        await chat.press("ctrl+s")
        await chat.until(lambda: "temperature cannot be `warm`" in chat.screen)
        form.query_one("#setting-temperature").value = "0.25"
        form.query_one("#setting-system").value = "Be [red]brief[/]"
        await chat.press("enter")
        await chat.until(lambda: not isinstance(chat.app.screen, SettingsForm))
        await chat.settle()
        await chat.ask("Again")
        assert provider.asked[-1].sampling == {"temperature": 0.25}
        assert provider.asked[-1].messages[0]["content"] == "Be [red]brief[/]"

    drive(talk, tmp_path, provider)

    async def again(chat):
        assert chat.session.settings.sampling == {"temperature": 0.25}
        assert chat.session.settings.system == "Be [red]brief[/]"

    drive(again, tmp_path)


def test_leaving_the_form_of_settings_changes_nothing_also_of_texts_it_cannot_show(tmp_path):
    async def talk(chat):
        system = "two\nlines \x1b[31m and a tab\t."
        await chat.app.actions.settings.do_system(system)
        await chat.press("f5")
        await chat.opened(SettingsForm)
        chat.app.screen.query_one("#setting-seed").value = "7"
        await chat.press("enter")
        await chat.settle()
        assert chat.session.settings.system == system
        assert chat.session.settings.sampling == {"seed": 7}

    drive(talk, tmp_path)


def test_a_setting_of_how_a_model_runs_loads_it_again(tmp_path):
    catalogue = ScriptedCatalogue()

    async def talk(chat):
        await chat.send("/set context 512")
        await chat.until(lambda: len(catalogue.opened) == 2)
        await chat.settle()
        assert catalogue.opened[1].runtime == {"context": 512}
        await chat.ask("Hello")
        await chat.until(lambda: "You said: Hello" in chat.screen)

    drive(talk, tmp_path, catalogue=catalogue)


@pytest.mark.parametrize("rows", [30, 24, 20, 19, 16, 12, 9])
def test_what_is_written_is_seen_in_a_terminal_of_few_rows(tmp_path, monkeypatch, rows):
    monkeypatch.chdir(tmp_path)  # a path of one line, wherever this runs
    for at in range(9):
        (tmp_path / f"file{at}.txt").write_text("text")

    def seen(chat, text):
        return any(line.strip("█ ") == text for line in chat.screen.splitlines())

    async def talk(chat):
        area = chat.app.prompt.area
        area.take("\n".join(f"line {n}" for n in range(30)) + "\nHERE")
        await chat.settle()
        assert seen(chat, "HERE"), chat.screen
        area.insert("\n@./")
        await chat.settle()
        assert chat.completions
        assert any(line.startswith("█") and "@./" in line for line in chat.screen.splitlines()), chat.screen
        await chat.press("escape")
        area.insert("\nTHERE")
        await chat.resize(80, 9 if rows > 9 else 24)
        await chat.settle()
        assert seen(chat, "THERE"), chat.screen

    drive(talk, tmp_path, size=(80, rows))
