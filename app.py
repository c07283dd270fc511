from edge_llm.cli.main import main

main()
