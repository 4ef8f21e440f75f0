/* Waiting for sockets, while bulks land on those that nobody need hear of yet. */
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

/* Whether the rest of it is still to come, and nobody wants to see what has. */
static int lands_on(const struct ckpt_poll *poll, int descriptor, int64_t now)
{
    struct ckpt_landing *landing = NULL;
    if (descriptor >= 0 && (size_t)descriptor < poll->descriptors)
        landing = poll->landings[descriptor];
    if (landing == NULL || ckpt_land(poll->kernels, descriptor, landing) != EAGAIN)
        return 0;
    if (landing->shown_us == 0)
        landing->shown_us = now;
    if (now - landing->shown_us < poll->show_us)
        return 1;
    landing->shown_us = now;
    return 0;
}

int ckpt_poll(const struct ckpt_poll *poll, int rest_ms, struct ckpt_ready *ready)
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
            struct ckpt_ready found = {events[each].data.fd, (int)events[each].events};
            if (found.events & EPOLLIN && lands_on(poll, found.descriptor, now))
                found.events &= ~EPOLLIN;
            if (found.events != 0)
                ready[kept++] = found;
        }
        if (kept != 0 || now - began >= (int64_t)rest_ms * 1000)
            return kept;
    }
}
