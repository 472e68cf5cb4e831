"""All private names of other libraries that rltune uses, except for those of RLlib and torch in `engine`.

`patching.are_replacements_on` is the one switch of all of them. Each says what it replaces, why, what that gains, and
what it was tested with, and names the upstream issue where one was found.
"""
