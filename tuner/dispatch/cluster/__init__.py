"""Many machines, on Dask.distributed; imported only where a scheduler is named, since its libraries are an extra's.

The scheduler knows who is there. Candidates go from the server to a worker directly, as bytes that `messages` decodes:
no task graph is sent, and nothing is unpickled.
"""
