"""The edge-llm command, also as `python -m edge_llm`."""

from edge_llm.cli import process


def main() -> None:
    """Run the command line and exit."""
    process.prepare()
    # imported late: a Ctrl-C while the rest is loading finds the process prepared
    from edge_llm.cli.main import main as run_and_leave

    run_and_leave()


if __name__ == "__main__":
    main()
