"""What is known of Ascend cards, and how one is called: limits and estimates as data, operators, streams and graphs."""
