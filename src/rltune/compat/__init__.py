"""Every private name of another library that we use, one file per library area; RLlib's and torch's also in `engine`.

`patching.are_replacements_on` is the one switch of all of them. Each says what it replaces, why, what that gains, and
what it was tested with, and names the upstream issue where one was found.
"""
