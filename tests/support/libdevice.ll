; In place of CUDA's libdevice, of which Triton reads the whole for every kernel that calls one of its
; functions: 50 ms, half of the time that a kernel is compiled in. What is called stays undefined, and
; no assembler looks for it.
