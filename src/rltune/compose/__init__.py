"""What a person asks for, by a command or a call, composed by Hydra from ``conf/`` and their own files."""
