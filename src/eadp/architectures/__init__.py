"""Known architectures without weights: configurations, processors, random models, and the memory they need."""
