/* Bytes from a socket to where they belong, summed while they are in the cache. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/socket.h>

#include "ckpt_native.h"

static size_t lesser(size_t a, size_t b)
{
    return a < b ? a : b;
}

int ckpt_land(const struct ckpt_kernels *kernels, int descriptor, struct ckpt_landing *landing)
{
    size_t length = landing->length, block = landing->block;

    for (;;) {
        size_t end = lesser(length, landing->summed + block);
        if (landing->filled >= end && end > landing->summed) {
            landing->crcs[landing->summed / block] = kernels->crc32(
                0, landing->bytes + landing->summed, end - landing->summed);
            landing->summed = end;
            continue;
        }
        if (landing->filled == length)
            return 0;

        /* To the end of a block and no further: it is summed before the next one comes. */
        size_t wanted = end - landing->filled;
        ssize_t count = recv(descriptor, landing->bytes + landing->filled, wanted, MSG_DONTWAIT);
        if (count < 0) {
            if (errno == EINTR)
                continue;
            return errno;
        }
        if (count == 0)
            return CKPT_CLOSED;
        landing->filled += (size_t)count;
        if ((size_t)count < wanted)
            return EAGAIN;
    }
}
