"""Every private name of another library that we use, one file per library area; RLlib's and torch's also in `engine`.

A replacement of such a name is guarded by `patching.is_supported`: on a version that was not tested the plain path
is taken, which works and is slower. Each says what it replaces, why, what that gains, and what it was tested with, and
names the upstream issue where one was found.
"""
