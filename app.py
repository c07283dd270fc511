from edge_llm.__main__ import main

main()
