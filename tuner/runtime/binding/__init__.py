"""The C runtime by ctypes: compiled, declared and called."""
