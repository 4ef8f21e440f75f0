/* Bytes to a socket, encrypted on their way: what is sent is still in the cache. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/socket.h>

#include "ckpt_native.h"

int ckpt_seal(int descriptor, struct ckpt_sealing *sealing)
{
    for (;;) {
        while (sealing->sent < sealing->filled) {
            /* More comes, if nothing but the tag: no segment ends here. */
            ssize_t count = send(descriptor, sealing->slice + sealing->sent,
                                 sealing->filled - sealing->sent,
                                 MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE);
            if (count < 0) {
                if (errno == EINTR)
                    continue;
                return errno;
            }
            sealing->sent += (size_t)count;
        }
        size_t rest = sealing->length - sealing->sealed;
        if (rest == 0)
            return 0;

        const struct ckpt_guard *guard = sealing->guard;
        const unsigned char *bytes = sealing->bytes + sealing->sealed;
        size_t size = rest < sealing->slice_length ? rest : sealing->slice_length;
        int written;
        if (guard->update(guard->context, sealing->slice, &written, bytes, (int)size) != 1)
            return CKPT_GUARD_FAILED;
        sealing->sealed += size;
        sealing->filled = size;
        sealing->sent = 0;
    }
}
