"""Programs at work: the compiled driver, its threads, memory for results and intermediates."""
