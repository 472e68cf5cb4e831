"""Store a sweep's checkpoints and other files on a local disk or in a bucket, behind one interface."""
