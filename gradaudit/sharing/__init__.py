"""What the adversary sees: shared updates of clients, singly and thousands at a time.

``Sharing`` (in ``sharing``) says how, ``share`` (in ``share``) makes one update, ``Observer`` (in
``observer``) many. ``options`` can be imported without torch, so nothing is imported here.
"""
