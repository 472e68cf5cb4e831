"""Store a sweep's checkpoints and files, on a disk or in remote storage, by the same code."""
