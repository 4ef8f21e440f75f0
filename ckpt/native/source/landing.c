/* Bytes from a socket to where they belong, summed and authenticated while they are in the cache. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/socket.h>

#include "ckpt_native.h"

static size_t lesser(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* As data that is not encrypted: it is added to the tag and goes nowhere. */
static int add(const struct ckpt_mac *mac, const unsigned char *bytes, size_t length)
{
    int written;
    return mac == NULL || mac->update(mac->context, NULL, &written, bytes, (int)length) == 1;
}

int ckpt_land(const struct ckpt_kernels *kernels, int descriptor, struct ckpt_landing *landing)
{
    size_t length = landing->length, block = landing->block;

    for (;;) {
        size_t end = lesser(length, landing->summed + block);
        if (landing->filled >= end && end > landing->summed) {
            const unsigned char *bytes = landing->bytes + landing->summed;
            landing->crcs[landing->summed / block] = kernels->crc32(0, bytes, end - landing->summed);
            if (!add(landing->mac, bytes, end - landing->summed))
                return CKPT_MAC_FAILED;
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
