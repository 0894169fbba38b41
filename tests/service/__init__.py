"""The service whole: job loop, routes, client, dispatch, command line."""
