"""Built libraries as wheels, which need neither opforge nor Triton where they are installed."""
