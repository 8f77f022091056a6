"""Virtual lanes and NICs (paper §4): who sends next, and how fast."""
