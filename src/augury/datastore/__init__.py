"""A frozen corpus on disk, searched by context: which texts went on from where the present one is?

``documents`` turns files into texts, ``change`` builds an index of them and changes it, ``index`` opens one and asks
it. An index is a directory of ``segment`` files and a manifest. Read ``order`` first: it says what is sorted and why.
"""
