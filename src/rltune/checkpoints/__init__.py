"""Where a sweep's checkpoints and files lie: on a disk or in remote storage, behind one store."""
