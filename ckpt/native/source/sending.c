/* Bytes to a socket, from where they lie. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/socket.h>

#include "ckpt_native.h"

int ckpt_send(int descriptor, struct ckpt_sending *sending)
{
    while (sending->sent < sending->length) {
        ssize_t count = send(descriptor, sending->bytes + sending->sent,
                             sending->length - sending->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (count >= 0)
            sending->sent += (size_t)count;
        else if (errno != EINTR)
            return errno;
    }
    return 0;
}
