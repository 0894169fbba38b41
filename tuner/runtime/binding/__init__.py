"""The C runtime through ctypes: compiled, declared and called."""
