"""The commands of `tuner` besides `serve`."""
