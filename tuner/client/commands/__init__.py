"""The commands of `tuner-client`."""
