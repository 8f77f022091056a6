"""How fast a node is: what is measured, how it is fitted, and where the answer is kept."""
