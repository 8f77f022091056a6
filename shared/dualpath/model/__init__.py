"""Models: what they are (no torch), the engines that run them (torch, synthetic), and their text."""
