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

/* What authenticates bytes: EVP_EncryptUpdate of libcrypto, and its context. */
struct ckpt_mac {
    void *context;
    int (*update)(void *context, unsigned char *out, int *written, const unsigned char *bytes,
                  int length);
};

/* Bytes that are to land; what of them came otherwise is in `filled` already. */
struct ckpt_landing {
    unsigned char *bytes;
    size_t length;
    size_t block;
    uint32_t *crcs; /* one for each block */
    size_t filled;
    size_t summed; /* whole blocks, in bytes: 0 at first */
    const struct ckpt_mac *mac; /* gets each block as it is summed; or NULL */
};

/* The peer has closed the connection. */
#define CKPT_CLOSED (-1)
/* The library that authenticates refuses. */
#define CKPT_MAC_FAILED (-2)

/* Receive what the socket has of a landing, and write the CRC-32 of each block as it becomes whole.
 * 0 when all bytes are there and summed; EAGAIN when the rest is still to come; CKPT_CLOSED;
 * CKPT_MAC_FAILED; or what recv says.
 * Python: Landing (ckpt/native/landing.py); in plain Python: socket.recv_into, then zlib.crc32. */
CKPT_API int ckpt_land(const struct ckpt_kernels *kernels, int descriptor,
                       struct ckpt_landing *landing);

#endif
