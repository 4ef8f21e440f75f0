/* Erasure coding with the checksums of what it read and wrote.
 *
 * A stripe goes through in slices of all its cells, so that a slice is summed while it is in the
 * second-level cache: bytes come from memory once, whatever the size of a cell.
 */
#include "ckpt_native.h"

/* Of all cells of a slice together: half of a small second-level cache. */
#define SLICES_BYTES (256u * 1024u)
#define SLICE_BYTES_MIN (4u * 1024u)

static size_t slice_bytes(int cells)
{
    size_t share = SLICES_BYTES / (size_t)(cells > 0 ? cells : 1);
    /* Whole pages: no vector loop has a tail but in the last slice. */
    size_t slice = share & ~(size_t)(SLICE_BYTES_MIN - 1);
    return slice > SLICE_BYTES_MIN ? slice : SLICE_BYTES_MIN;
}

static void sum(const struct ckpt_kernels *kernels, int cells, unsigned char *const *at,
                size_t size, uint32_t *crcs)
{
    for (int cell = 0; cell < cells; cell++)
        crcs[cell] = kernels->crc32(crcs[cell], at[cell], size);
}

void ckpt_transform(const struct ckpt_kernels *kernels, size_t length, int inputs, int outputs,
                    unsigned char *tables, unsigned char *const *from, unsigned char *const *to,
                    uint32_t *input_crcs, uint32_t *output_crcs)
{
    unsigned char *read[CKPT_COLUMNS_MAX], *written[CKPT_COLUMNS_MAX];
    size_t slice = slice_bytes(inputs + outputs);

    for (int cell = 0; cell < inputs && input_crcs != NULL; cell++)
        input_crcs[cell] = 0;
    for (int cell = 0; cell < outputs; cell++)
        output_crcs[cell] = 0;
    for (size_t at = 0; at < length; at += slice) {
        size_t size = length - at < slice ? length - at : slice;
        for (int cell = 0; cell < inputs; cell++)
            read[cell] = from[cell] + at;
        for (int cell = 0; cell < outputs; cell++)
            written[cell] = to[cell] + at;
        if (input_crcs != NULL)
            sum(kernels, inputs, read, size, input_crcs);
        if (outputs > 0) {
            kernels->encode((int)size, inputs, outputs, tables, read, written);
            sum(kernels, outputs, written, size, output_crcs);
        }
    }
}
