"""What the settings of a chat say of values that nobody has set."""

import pytest

from edge_llm.chats.settings import BY_NAME, ChatSettings
from edge_llm.providers.base import Facts
from edge_llm.tui.holding import holds

LOADED = Facts("scripted", 1024, "device: host (no Ascend card); placement: host")


@pytest.mark.parametrize("name", BY_NAME)
def test_of_every_setting_it_is_known_what_holds_once_a_model_is_loaded(name):
    said = str(holds(name, ChatSettings(), ChatSettings(), LOADED))
    assert said and "not known" not in said and "None" not in said
