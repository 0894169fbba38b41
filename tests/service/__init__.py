"""Tests of the whole service: job loop, routes, client, dispatch, command line."""
