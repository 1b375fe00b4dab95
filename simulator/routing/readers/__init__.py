"""Formats of routing recorders, each a file of this folder that is found by its name.

A reader's file has ``FOLDER``, a pattern of the files that such a recorder leaves in a folder (or an empty text),
``recognises(file, head)``, which tells the format by the file's name and its first bytes, and ``record(files,
choice)``, which gives a :class:`~simulator.routing.recording.Recording`; *choice* is what follows a ``#`` in the name.
"""
