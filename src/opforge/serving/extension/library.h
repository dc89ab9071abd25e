/* What the files of native/runtime that the extension is compiled with take from their library. */
#ifndef OPFORGE_LIBRARY_INCLUDED
#define OPFORGE_LIBRARY_INCLUDED

/* For pthread.h, with a compiler that is held to ISO C. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif

#include "abi.h"

/* As FIRST_ARCH_SPECIFIC of arch.py; a test compares them. */
#define OF_FIRST_ARCH_SPECIFIC 90

/* Of records that the extension does not use. */
#define OF_MAX_BUFFERS 1
#define OF_MAX_LAUNCHES 1
#define OF_MAX_ALLOCATIONS 1
#define OF_MAX_NUMBERS 1

#endif
