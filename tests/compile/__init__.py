"""What needs NVRTC: the device code and every generated kernel."""
