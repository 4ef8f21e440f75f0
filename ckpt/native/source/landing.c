/* Bytes from a socket to where they belong: authenticated, decrypted and summed in the cache. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "ckpt_native.h"

static size_t lesser(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* What is not encrypted is added to the tag as associated data, and goes nowhere. */
static int guarded(const struct ckpt_guard *guard, unsigned char *bytes, size_t length)
{
    int written;
    if (guard == NULL)
        return 1;
    unsigned char *out = guard->decrypts ? bytes : NULL;
    return guard->update(guard->context, out, &written, bytes, (int)length) == 1;
}

/* To the end of a block and no further, as it is summed before the next one comes; the tail comes
 * along with the last one. */
static ssize_t take(int descriptor, const struct ckpt_landing *landing, size_t end, size_t *wanted)
{
    size_t length = landing->length, filled = landing->filled;
    struct iovec parts[2];
    struct msghdr message = {.msg_iov = parts};

    *wanted = 0;
    if (filled < end) {
        parts[0] = (struct iovec){landing->bytes + filled, end - filled};
        message.msg_iovlen = 1;
        *wanted = end - filled;
    }
    if (end == length && landing->tail_length != 0) {
        size_t there = filled > length ? filled - length : 0;
        parts[message.msg_iovlen++] =
            (struct iovec){landing->tail + there, landing->tail_length - there};
        *wanted += landing->tail_length - there;
    }
    return recvmsg(descriptor, &message, MSG_DONTWAIT);
}

static int land(const struct ckpt_kernels *kernels, int descriptor, struct ckpt_landing *landing)
{
    size_t length = landing->length, block = landing->block;

    for (;;) {
        size_t end = lesser(length, landing->summed + block);
        if (landing->filled >= end && end > landing->summed) {
            unsigned char *bytes = landing->bytes + landing->summed;
            if (!guarded(landing->guard, bytes, end - landing->summed))
                return CKPT_GUARD_FAILED;
            landing->crcs[landing->summed / block] = kernels->crc32(0, bytes, end - landing->summed);
            landing->summed = end;
            continue;
        }
        if (landing->filled == length + landing->tail_length)
            return 0;

        size_t wanted;
        ssize_t count = take(descriptor, landing, end, &wanted);
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

/* Wake the reader not before the rest, or a good part of it, has come. */
static void rest(int descriptor, struct ckpt_landing *landing)
{
    size_t left = landing->length + landing->tail_length - landing->filled;
    int wake = (int)lesser(left, (size_t)landing->wake_max);
    if (landing->wake_max == 0 || wake == landing->wake)
        return;
    landing->wake = wake;
    /* Refused: it is woken earlier, and nothing else. */
    (void)setsockopt(descriptor, SOL_SOCKET, SO_RCVLOWAT, &wake, sizeof wake);
}

int ckpt_land(const struct ckpt_kernels *kernels, int descriptor, struct ckpt_landing *landing)
{
    int outcome = land(kernels, descriptor, landing);
    if (outcome == EAGAIN)
        rest(descriptor, landing);
    return outcome;
}
