"""What prefill and decode nodes share."""
