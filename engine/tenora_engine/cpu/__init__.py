"""The engine's operations as a C++ library of its own, for CPUs: what lies in `src/`, and its way into the kernel seam.

`library` opens the library, `native` has the operations, `recorded` runs a whole forward pass as one call.
"""
