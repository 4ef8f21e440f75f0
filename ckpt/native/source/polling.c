/* Waiting for sockets, while bulks land and leave at those that nobody need hear of yet. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/epoll.h>
#include <time.h>

#include "ckpt_native.h"

static int64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Whether a bulk that is not through has been shown lately. */
static int shown_lately(const struct ckpt_poll *poll, int64_t *shown_us, int64_t now)
{
    if (*shown_us == 0)
        *shown_us = now;
    if (now - *shown_us < poll->show_us)
        return 1;
    *shown_us = now;
    return 0;
}

static int lands_on(const struct ckpt_poll *poll, int descriptor, struct ckpt_landing *landing,
                    int64_t now)
{
    return landing != NULL && ckpt_land(poll->kernels, descriptor, landing) == EAGAIN &&
           shown_lately(poll, &landing->shown_us, now);
}

static int leaves_on(const struct ckpt_poll *poll, int descriptor, const struct ckpt_bulk *bulk,
                     int64_t now)
{
    if (bulk->sending != NULL)
        return ckpt_send(descriptor, bulk->sending) == EAGAIN &&
               shown_lately(poll, &bulk->sending->shown_us, now);
    return bulk->sealing != NULL && ckpt_seal(descriptor, bulk->sealing) == EAGAIN &&
           shown_lately(poll, &bulk->sealing->shown_us, now);
}

/* Those of its events that somebody must hear of. */
static int heard(const struct ckpt_poll *poll, int descriptor, int events, int64_t now)
{
    if (descriptor < 0 || (size_t)descriptor >= poll->descriptors)
        return events;
    const struct ckpt_bulk *bulk = &poll->bulks[descriptor];
    if (events & EPOLLIN && lands_on(poll, descriptor, bulk->landing, now))
        events &= ~EPOLLIN;
    if (events & EPOLLOUT && leaves_on(poll, descriptor, bulk, now))
        events &= ~EPOLLOUT;
    return events;
}

int ckpt_poll(struct ckpt_poll *poll, int rest_ms, struct ckpt_ready *ready)
{
    struct epoll_event events[CKPT_READY_MAX];
    int64_t began = now_us(), now = began;

    for (;;) {
        int64_t left = rest_ms - (now - began) / 1000;
        int count = epoll_wait(poll->epoll, events, CKPT_READY_MAX, left > 0 ? (int)left : 0);
        if (count < 0)
            return errno == EINTR ? 0 : -errno;
        now = now_us();
        int kept = 0;
        for (int each = 0; each < count; each++) {
            int descriptor = events[each].data.fd;
            int rest = heard(poll, descriptor, (int)events[each].events, now);
            if (rest != 0)
                ready[kept++] = (struct ckpt_ready){descriptor, rest};
        }
        int64_t woken = now;
        now = now_us();
        poll->worked_us += now - woken;
        if (kept != 0 || now - began >= (int64_t)rest_ms * 1000)
            return kept;
    }
}
