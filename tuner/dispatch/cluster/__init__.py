"""Many machines, with Dask.distributed; imported only if a scheduler is named, since its libraries belong to an extra.

The scheduler knows the workers. Candidates go from the server to a worker directly, as bytes that `messages` decodes:
no task graph is sent, and nothing is unpickled.
"""
