/* Which compiler made this library, for which machine. */
#include "ckpt_native.h"

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#error "neither gcc nor clang: add this compiler here"
#endif

#if defined(__x86_64__)
#define MACHINE "x86_64"
#elif defined(__aarch64__)
#define MACHINE "aarch64"
#else
#error "neither x86-64 nor aarch64: add this machine here"
#endif

const char *ckpt_build(void)
{
    return COMPILER ", " MACHINE;
}
