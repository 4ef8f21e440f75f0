/* What Python calls: work on bytes, without a thought.
 *
 * Every function is bound by ctypes, so a call runs without the interpreter's lock. None keeps
 * state, allocates, or looks at anything but its arguments: who calls answers for the addresses
 * (the modules of ckpt.native check the buffers behind them). Kernels for CRC-32 and for the field come from
 * ISA-L, which picks the instructions of this CPU; their addresses are given with each call.
 */
#ifndef CKPT_NATIVE_H
#define CKPT_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#define CKPT_API __attribute__((visibility("default")))

/* Columns of the widest code: the field has 256 elements. */
#define CKPT_COLUMNS_MAX 256

/* ISA-L's crc32_gzip_refl and ec_encode_data. */
struct ckpt_kernels {
    uint32_t (*crc32)(uint32_t start, const unsigned char *bytes, uint64_t length);
    void (*encode)(int length, int inputs, int outputs, unsigned char *tables,
                   unsigned char **from, unsigned char **to);
};

/* Which compiler made this library, for which machine. */
CKPT_API const char *ckpt_build(void);

/* Compute `outputs` cells from `inputs` cells, each of `length` bytes, by the tables that
 * ec_init_tables made; and the CRC-32 of all inputs and of all outputs while they are in the cache.
 * `input_crcs` may be NULL: then inputs are not summed. At most CKPT_COLUMNS_MAX of each.
 * Python: Codec (ckpt/erasure/codec.py); in plain Python: tests/erasure/cells.py. */
CKPT_API void ckpt_transform(const struct ckpt_kernels *kernels, size_t length, int inputs,
                             int outputs, unsigned char *tables, unsigned char *const *from,
                             unsigned char *const *to, uint32_t *input_crcs,
                             uint32_t *output_crcs);

/* Write the CRC-32 of each block of `block` bytes, the last one of what is left, and return that of
 * all bytes. Nothing is written for no bytes.
 * Python: sums_of (ckpt/native/sums.py); in plain Python: zlib.crc32 of each part. */
CKPT_API uint32_t ckpt_sum_blocks(const struct ckpt_kernels *kernels, const unsigned char *bytes,
                                  size_t length, size_t block, uint32_t *crcs);

/* The CRC-32 of `length` bytes, from those of their blocks. */
CKPT_API uint32_t ckpt_join_blocks(const uint32_t *crcs, size_t length, size_t block);

/* What guards bytes: EVP_EncryptUpdate or EVP_DecryptUpdate of libcrypto, and its context. */
struct ckpt_guard {
    void *context;
    int (*update)(void *context, unsigned char *out, int *written, const unsigned char *bytes,
                  int length);
    int decrypts; /* in place; 0: bytes are authenticated and stay as they are */
};

/* Bytes that are to land; what of them came otherwise is in `filled` already. */
struct ckpt_landing {
    unsigned char *bytes;
    size_t length;
    size_t block;
    uint32_t *crcs; /* one for each block */
    size_t filled; /* of the bytes, then of the tail */
    size_t summed; /* whole blocks, in bytes: 0 at first */
    const struct ckpt_guard *guard; /* gets each block before it is summed; or NULL */
    unsigned char *tail; /* what follows the bytes: neither guarded nor summed */
    size_t tail_length;  /* may be 0 */
    int wake_max; /* bytes that shall have come before its reader is woken; 0: that is not to be had */
    int wake;     /* what the socket was asked for last */
    int64_t shown_us; /* of ckpt_poll: 0 at first */
};

/* The peer has closed the connection. */
#define CKPT_CLOSED (-1)
/* The library that guards refuses. */
#define CKPT_GUARD_FAILED (-2)

/* Receive what the socket has of a landing; decrypt each block as it becomes whole, where the guard
 * does so, and write its CRC-32. While the rest is to come, the socket shows itself readable only
 * when all of that has, or `wake_max` bytes (SO_RCVLOWAT).
 * 0 when all is there, the tail as well, and summed; EAGAIN when the rest is still to come;
 * CKPT_CLOSED; CKPT_GUARD_FAILED; or what recv says. Nothing says yet that the tail fits.
 * Python: Landing (ckpt/native/landing.py); in plain Python: socket.recv_into, then zlib.crc32. */
CKPT_API int ckpt_land(const struct ckpt_kernels *kernels, int descriptor,
                       struct ckpt_landing *landing);

/* Bytes that are to leave as they are. */
struct ckpt_sending {
    const unsigned char *bytes;
    size_t length;
    size_t sent;      /* 0 at first */
    int64_t shown_us; /* of ckpt_poll: 0 at first */
};

/* Send until the socket takes no more: 0 when all are sent, EAGAIN, or what send says.
 * Python: PlainSending (ckpt/native/plain_sending.py); in plain Python: socket.send. */
CKPT_API int ckpt_send(int descriptor, struct ckpt_sending *sending);

/* Bytes that are to leave encrypted. */
struct ckpt_sealing {
    const unsigned char *bytes;
    size_t length;
    size_t sealed; /* of the bytes: 0 at first */
    unsigned char *slice;
    size_t slice_length;
    size_t filled; /* of the slice: 0 at first */
    size_t sent;   /* of what is filled */
    const struct ckpt_guard *guard; /* encrypts; `decrypts` is not looked at */
    int64_t shown_us; /* of ckpt_poll: 0 at first */
};

/* Encrypt a slice, send it, and so on, until the socket takes no more. The bytes stay as they are.
 * 0 when all are sent; EAGAIN when the rest is to be sent later; CKPT_GUARD_FAILED; or what send says.
 * Python: Sealing (ckpt/native/sealing.py); in plain Python: Sealer.add, then socket.send. */
CKPT_API int ckpt_seal(int descriptor, struct ckpt_sealing *sealing);

/* Blocks that are to come out of a file. */
struct ckpt_fetch {
    int descriptor; /* with O_DIRECT, or not */
    int64_t offset; /* in the file, of the first byte */
    size_t length;
    size_t block;         /* the last one is of what is left */
    const uint32_t *crcs; /* what the blocks must have */
    unsigned char *to;
    unsigned char *slice; /* where they are read to first; aligned, where the file wants that */
    size_t slice_length;  /* whole blocks */
    size_t fetched;       /* 0 at first */
    int32_t hand;         /* 0 at first; ckpt_let_go's as well */
};

/* Read, compare and copy slice by slice, in the order of the file. What is wrong is not copied.
 * 0 when all is there; CKPT_CLOSED where the file ends before; CKPT_GUARD_FAILED where a block is
 * not what it must be; ECANCELED; or what pread says.
 * Python: Fetch (ckpt/native/fetching.py); in plain Python: os.pread, then zlib.crc32. */
CKPT_API int ckpt_fetch(const struct ckpt_kernels *kernels, struct ckpt_fetch *fetch);

/* Nothing is copied any more once this has returned, from whatever thread: not even by a
 * ckpt_fetch that a sick disk still holds up. Idempotent. */
CKPT_API void ckpt_let_go(struct ckpt_fetch *fetch);

/* What of bulks goes on at one descriptor while nobody is woken; each may be NULL. */
struct ckpt_bulk {
    struct ckpt_landing *landing;
    struct ckpt_sending *sending;
    struct ckpt_sealing *sealing; /* one of the two at most */
};

/* What ckpt_poll waits for. */
struct ckpt_poll {
    const struct ckpt_kernels *kernels;
    struct ckpt_bulk *bulks; /* by descriptor */
    size_t descriptors;
    int epoll;       /* each descriptor's data is itself */
    int64_t show_us; /* a bulk that goes on is shown this often */
    int64_t worked_us; /* in all calls: what they did not wait */
};

/* A descriptor, and its events of epoll. */
struct ckpt_ready {
    int descriptor;
    int events;
};

/* Most that one call of ckpt_poll writes. */
#define CKPT_READY_MAX 64

/* As epoll_wait, but bulks land and leave meanwhile. A descriptor is shown for one only when it is
 * whole or broken, and in between every `show_us`: a call of ckpt_land, ckpt_send or ckpt_seal says
 * what it is. Returns how many it wrote, 0 after a signal or the rest, or -errno.
 * Python: BulkPoll (ckpt/native/polling.py); in plain Python: select.epoll, then Landing.receive,
 * PlainSending.send, Sealing.send. */
CKPT_API int ckpt_poll(struct ckpt_poll *poll, int rest_ms, struct ckpt_ready *ready);

/* start, place in the payload, length, term, counter: of a piece. */
#define CKPT_PIECE_NUMBERS 5
/* As the length of an entry's one piece: there is none, or there are several. */
#define CKPT_NO_PIECE (-1)
#define CKPT_MANY_PIECES (-2)

/* A rank's table in arrays. What is counted is written by every call; the rest only where `form` is
 * not NULL, and there is room for no more than the maxima. */
struct ckpt_table {
    int64_t rank;
    int64_t world_size;
    size_t entries;
    size_t axes; /* of all entries together */
    size_t form_bytes;
    size_t entries_max;
    size_t axes_max;
    size_t form_bytes_max;
    unsigned char *form;      /* name, meaning, dtype and global shape of each entry, as they came */
    int64_t *begins;          /* of each entry, among the bytes that were read */
    int64_t *form_ends;       /* of each entry, among those of the form */
    uint64_t *marks;          /* of each entry: equal where its bytes of the form are equal */
    unsigned char *axes_each; /* of each entry */
    int64_t *wholes;          /* each axis: items of the tensor */
    int64_t *offsets;         /* each axis: of the box */
    int64_t *shapes;          /* each axis: of the box */
    int64_t *pieces;          /* CKPT_PIECE_NUMBERS rows of entries_max; term -1: it lies in the payload
                                 at hand */
    unsigned char *prints;    /* 16 bytes each; left as they are where there is none */
    unsigned char *printed;   /* 1 where there is one */
    int64_t *kinds;           /* of each entry: the first one, or one, of its meaning, dtype and global
                                 shape */
    int64_t *name_bytes;      /* of each entry */
    unsigned char *plain;     /* 1 where the name is ASCII and after the one before, the box is the
                                 whole tensor, and its one piece begins with it and lies in the
                                 payload at hand */
};

/* Read a table of MessagePack: 1; 0 where it has not the usual form, or passes a maximum.
 * Python: read_table (ckpt/native/tables.py); in plain Python: decode_table. */
CKPT_API int ckpt_read_table(const unsigned char *raw, size_t length, struct ckpt_table *table);

/* Write plain entries of a table that was read as tensors of an index (ckpt/format/index/pages.py):
 * how many bytes, and 0 where they are not plain, or there is no room. `rank`: as MessagePack.
 * Python: TableArrays.tensors; in plain Python: msgspec. */
CKPT_API size_t ckpt_write_tensors(const unsigned char *raw, size_t length, const int64_t *begins,
                                   size_t entries, const unsigned char *rank, size_t rank_length,
                                   unsigned char *out, size_t out_bytes_max);

#endif
