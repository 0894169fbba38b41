"""The host side of a kernel: its source, its parameter, its tensor maps."""
