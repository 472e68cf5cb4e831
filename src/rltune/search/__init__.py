"""Choose the configurations that are tried and the trials that are stopped, without Ray."""
