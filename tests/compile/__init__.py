"""Tests that need NVRTC: they compile the device code and every generated kernel."""
