"""What touches bytes: a small C library, and ISA-L, bound by ctypes so that every call drops the
interpreter lock. What decides stays Python.

    isal       ISA-L's kernels, found on this machine
    library    our own library, built when ckpt is installed
    arrays     what calls take of numpy
    cells      cells from cells: erasure coding, with the checksums of what it read and wrote
    sums       checksums of bytes and of their blocks
    landing    bytes from a socket, summed as they come, and decrypted where they were encrypted
    sealing    bytes to a socket, encrypted as they go
    libcrypto  OpenSSL's functions, found on this machine
    gmac, gcm  what authenticates bulks with them, and what encrypts all that is said
    source/    its C, and the hook that builds it; not installed
"""
