"""What drafters know beyond the request at hand, on disk and shared: texts of the user's own, and answers given before.

A frozen corpus is searched by context: which texts went on from where the present one is? ``documents`` turns files
into texts, ``change`` builds an index of them and changes it, ``index`` opens one and asks it, ``live`` follows one
that others change, ``publish`` brings it to an object store (``bucket``) and back. An index is a directory of
``segment`` files and a manifest. Read ``order`` first: it says what is sorted and why.

Answers are ``records`` in a ``directory`` that several processes share (``answers``), or that replicas ``exchange``
through a store.
"""
