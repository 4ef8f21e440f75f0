/* Blocks of a file to where they belong: read, compared, and copied while they are in the cache. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "ckpt_native.h"

/* Who may write to the place of a fetch; no two at once. */
enum { FREE, COPYING, LET_GO };

static int swapped(int32_t *hand, int32_t from, int32_t to)
{
    return __atomic_compare_exchange_n(hand, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static int read_whole(const struct ckpt_fetch *fetch, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t count = pread(fetch->descriptor, fetch->slice + done, size - done,
                              (off_t)(fetch->offset + (int64_t)(fetch->fetched + done)));
        if (count == 0)
            return CKPT_CLOSED;
        if (count > 0)
            done += (size_t)count;
        else if (errno != EINTR)
            return errno;
    }
    return 0;
}

static int is_right(const struct ckpt_kernels *kernels, const struct ckpt_fetch *fetch, size_t size)
{
    const uint32_t *crcs = fetch->crcs + fetch->fetched / fetch->block;

    for (size_t at = 0, length; at < size; at += length) {
        length = size - at < fetch->block ? size - at : fetch->block;
        if (kernels->crc32(0, fetch->slice + at, length) != *crcs++)
            return 0;
    }
    return 1;
}

int ckpt_fetch(const struct ckpt_kernels *kernels, struct ckpt_fetch *fetch)
{
    while (fetch->fetched < fetch->length) {
        if (__atomic_load_n(&fetch->hand, __ATOMIC_ACQUIRE) == LET_GO)
            return ECANCELED;
        size_t rest = fetch->length - fetch->fetched;
        size_t size = rest < fetch->slice_length ? rest : fetch->slice_length;
        int outcome = read_whole(fetch, size);
        if (outcome != 0)
            return outcome;
        if (!is_right(kernels, fetch, size))
            return CKPT_GUARD_FAILED;
        if (!swapped(&fetch->hand, FREE, COPYING))
            return ECANCELED;
        memcpy(fetch->to + fetch->fetched, fetch->slice, size);
        __atomic_store_n(&fetch->hand, FREE, __ATOMIC_RELEASE);
        fetch->fetched += size;
    }
    return 0;
}

void ckpt_let_go(struct ckpt_fetch *fetch)
{
    /* A copy takes less than a turn of the scheduler. */
    while (!swapped(&fetch->hand, FREE, LET_GO) &&
           __atomic_load_n(&fetch->hand, __ATOMIC_ACQUIRE) == COPYING)
        sched_yield();
}
