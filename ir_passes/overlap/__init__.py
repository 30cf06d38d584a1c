"""When communication starts, and when it is waited for."""
