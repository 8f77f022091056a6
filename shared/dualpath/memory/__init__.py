"""Host arenas with slots, the device's memory, and the rules by which requests acquire them."""
