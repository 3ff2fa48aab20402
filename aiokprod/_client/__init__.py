"""What is behind `Producer`: calls, checks, lifecycle, and the wiring of one event loop."""
