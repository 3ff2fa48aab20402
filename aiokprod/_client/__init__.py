"""The implementation of `Producer`: its calls, argument checks, lifecycle and `Runtime`."""
