"""Packages that edge-llm can do without: the extras of its `pyproject.toml`."""


def install_extra(name: str) -> str:
    """How to get the packages of the extra ``name``, in words for the end of a message: edge-llm is in no package index."""
    return f"`pip install '.[{name}]'` in the folder of edge-llm's source"
