"""What touches bytes: a small C library, and ISA-L, bound by ctypes so that every call drops the
interpreter lock. What decides stays Python.

    isal       ISA-L's kernels, found on this machine
    library    our own library, built when ckpt is installed
    calls      its functions over buffers, checked
    source/    its C, and the hook that builds it; not installed
"""
