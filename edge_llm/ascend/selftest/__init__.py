"""The self-test of an Ascend card: probes of every operator that models use, in a process of their own, and the report."""
