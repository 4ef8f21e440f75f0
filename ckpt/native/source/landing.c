/* Bytes from a socket to where they belong: authenticated, decrypted and summed soon after. */
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

/* What is taken at once, before it is summed. Each time the kernel lets the peer know that there is
 * room again: by blocks of 128 KiB that cost both ends more than to sum what has left the
 * second-level cache (docs/decisions/0050). */
#ifndef TAKE_BYTES
#define TAKE_BYTES ((size_t)2 << 20) /* Fewer for the harness, whose sockets never hold so many. */
#endif

/* The tail comes along with the last bytes. */
static ssize_t take(int descriptor, const struct ckpt_landing *landing, size_t *wanted)
{
    size_t length = landing->length, filled = landing->filled;
    size_t now = filled < length ? lesser(length - filled, TAKE_BYTES) : 0;
    struct iovec parts[2];
    struct msghdr message = {.msg_iov = parts};

    *wanted = now;
    if (now != 0)
        parts[message.msg_iovlen++] = (struct iovec){landing->bytes + filled, now};
    if (filled + now >= length && landing->tail_length != 0) {
        size_t there = filled > length ? filled - length : 0;
        parts[message.msg_iovlen++] =
            (struct iovec){landing->tail + there, landing->tail_length - there};
        *wanted += landing->tail_length - there;
    }
    return recvmsg(descriptor, &message, MSG_DONTWAIT);
}

/* Each block that is whole by now; 0 when the guard refuses. */
static int sum(const struct ckpt_kernels *kernels, struct ckpt_landing *landing)
{
    size_t there = lesser(landing->filled, landing->length);

    while (landing->summed < landing->length) {
        size_t end = lesser(landing->length, landing->summed + landing->block);
        unsigned char *bytes = landing->bytes + landing->summed;
        if (end > there)
            break;
        if (!guarded(landing->guard, bytes, end - landing->summed))
            return 0;
        landing->crcs[landing->summed / landing->block] =
            kernels->crc32(0, bytes, end - landing->summed);
        landing->summed = end;
    }
    return 1;
}

static int land(const struct ckpt_kernels *kernels, int descriptor, struct ckpt_landing *landing)
{
    for (int more = 1;;) {
        if (!sum(kernels, landing))
            return CKPT_GUARD_FAILED;
        if (landing->filled == landing->length + landing->tail_length)
            return 0;
        if (!more)
            return EAGAIN;

        size_t wanted;
        ssize_t count = take(descriptor, landing, &wanted);
        if (count < 0) {
            if (errno == EINTR)
                continue;
            return errno;
        }
        if (count == 0)
            return CKPT_CLOSED;
        landing->filled += (size_t)count;
        more = (size_t)count == wanted;
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
