"""The cost of a prefill: counted from a configuration, and measured in time and memory."""
