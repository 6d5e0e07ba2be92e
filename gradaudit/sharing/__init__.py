"""What the adversary sees: shared updates of clients, singly and thousands at a time.

``SharingProtocol`` (in ``protocol``) says how, ``share`` (in ``share``) makes one update,
``Interceptor`` (in ``interceptor``) sees many.
"""
