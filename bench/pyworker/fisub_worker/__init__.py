"""The worker process of fisub for solutions in Python and Python references.

It reads requests from descriptor 3, a socket that also carries descriptors, and writes replies to 4, one JSON object a
line. Package bench/worker describes them: open, build, load, run, measure, check. Tensors travel through files. It
needs the standard library and torch. open imports torch; code before that, such as the rules for entry points, does
not need it.

Modules, from the top down:

    server      answers requests
    protocol    the descriptors
    timing      timed calls
    checks      calls that are checked for side effects
    solution    arguments, a call and its outputs
    functions   the functions of a definition that make inputs and judge outputs, in the process of the reference
    objects     objects of tensors and other values, as they travel between processes
    build       from sources to an entry function
    device      the GPU, or the CPU with the virtual GPU of the package vgpu
    cupti       the GPU's own record of its work
    memory      the bytes of tensors
    guard       runs code of a solution and finds the cause of its errors
    entry       the official rules for entry functions
    compilers   causes of compiler errors
    image       the packages of the contest's image
    tracebacks  tracebacks without fisub's frames
    errors      the errors of replies
"""
