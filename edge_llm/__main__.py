"""`python -m edge_llm` is the edge-llm command."""

from edge_llm.cli.main import main

main()
