"""Chat templates that many models share, by the names that llama.cpp's `--chat-template` has for them."""

from __future__ import annotations

_CHATML = (
    "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + "
    "message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
_LLAMA2 = (
    "{% set told = namespace(system='') %}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{% set told.system = '<<SYS>>\n' + message['content'] + '\n<</SYS>>\n\n' %}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] | trim + ' ' + eos_token }}"
    "{% else %}{{ bos_token + '[INST] ' + told.system + message['content'] | trim + ' [/INST]' }}{% set told.system = '' %}"
    "{% endif %}{% endfor %}"
)
_MISTRAL = (
    "{{ bos_token }}{% set told = namespace(system='') %}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{% set told.system = message['content'] + '\n\n' %}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] | trim + eos_token }}"
    "{% else %}{{ '[INST] ' + told.system + message['content'] | trim + ' [/INST]' }}{% set told.system = '' %}"
    "{% endif %}{% endfor %}"
)
_GEMMA = (
    "{{ bos_token }}{% set told = namespace(system='') %}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{% set told.system = message['content'] | trim + '\n\n' %}{% else %}"
    "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' + "
    "(told.system if message['role'] == 'user' else '') + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% if message['role'] == 'user' %}{% set told.system = '' %}{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
_PHI3 = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
_ZEPHYR = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + eos_token + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
_COMMAND_R = (
    "{{ bos_token }}{% for message in messages %}{{ '<|START_OF_TURN_TOKEN|>' + {'system': '<|SYSTEM_TOKEN|>', "
    "'user': '<|USER_TOKEN|>', 'assistant': '<|CHATBOT_TOKEN|>'}.get(message['role'], '<|SYSTEM_TOKEN|>') + "
    "message['content'] | trim + '<|END_OF_TURN_TOKEN|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"
)
_VICUNA = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + '\n\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ 'ASSISTANT: ' + message['content'] + eos_token + '\n' }}"
    "{% else %}{{ 'USER: ' + message['content'] + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
KNOWN_TEMPLATES = {
    "chatml": _CHATML,
    "command-r": _COMMAND_R,
    "gemma": _GEMMA,
    "llama2": _LLAMA2,
    "llama3": _LLAMA3,
    "mistral": _MISTRAL,
    "phi3": _PHI3,
    "vicuna": _VICUNA,
    "zephyr": _ZEPHYR,
}
"""Jinja programs; ``bos_token`` is empty in a model that wants none."""
