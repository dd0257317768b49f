"""Other engines, each run in a Python of its own: nothing here imports Augury, and Augury imports nothing here.

``worker.py`` is the process; a file beside it is one engine, and a ``.txt`` of the same name its packages.
"""
