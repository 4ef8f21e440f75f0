/* Notes what a process changes on disk and has not synced yet, so that a test can take it away.
 *
 * Preloaded into a daemon. Before each change below $CKPT_TEST_ROOT I write to a journal of this
 * process in $CKPT_TEST_JOURNALS what the change replaces; behind each sync, up to where the journal
 * was when it began. When the process is dead, losing.py undoes what no sync covers: the directory is
 * as a machine finds it that lost its power (the idea is LazyFS's, without a file system of its own).
 *
 * A change and its note are one step under a lock, so that a sync covers exactly what had ended
 * before it began. With $CKPT_TEST_LYING set no sync is noted: a disk that says "synced" and did not.
 *
 * A record: struct record, then the replaced bytes, then one or two absolute paths. What a rename
 * replaces and what an unlink removes stays as <journal>.kept/<position of the record>.
 *
 * Not seen: stdio, io_uring, writes through shared mappings (SQLite's -shm, which it makes anew).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* Descriptors above the process's own limit, for as long as one is opened. */
enum { MORE = 64 };

enum kind { WRITE = 'W', RESIZE = 'T', CREATE = 'C', RENAME = 'R', UNLINK = 'U', MKDIR = 'M', SYNC = 'S' };

struct record {
    uint64_t kind;
    uint64_t inode;      /* of the file; of the directory that holds the first path */
    uint64_t inode2;     /* of the directory that holds the second path */
    uint64_t offset;     /* of the write; of a sync: changes before this position are durable */
    uint64_t length;     /* bytes written */
    uint64_t old_size;   /* of the file, before */
    uint64_t replaced;   /* bytes that follow */
    uint64_t path_bytes;
    uint64_t path2_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_bytes;
static bool lying;
static int journal = -1;
static uint64_t position;
static char kept[PATH_MAX];

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static void fail(const char *what)
{
    dprintf(2, "recorder: %s: %s\n", what, strerror(errno));
    abort();
}

/* A child has a journal of its own. */
static void forked(void)
{
    if (journal >= 0) close(journal);
    journal = -1;
    position = 0;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, forked);
    const char *given = getenv("CKPT_TEST_ROOT");
    if (given && snprintf(root, sizeof root, "%s/", given) < (int)sizeof root) root_bytes = strlen(root);
    lying = getenv("CKPT_TEST_LYING") != NULL;
}

/* ------------------------------------------------------------------------------ the journal */

/* Also where the process may have no more descriptors: that is its trouble, not mine. */
static int real_open(const char *path, int flags, int mode)
{
    REAL(open);
    int descriptor = real(path, flags | O_CLOEXEC, mode);
    if (descriptor < 0 && errno == EMFILE) {
        struct rlimit limit, more;
        getrlimit(RLIMIT_NOFILE, &limit);
        more = limit;
        more.rlim_cur = limit.rlim_cur + MORE < limit.rlim_max ? limit.rlim_cur + MORE : limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &more);
        descriptor = real(path, flags | O_CLOEXEC, mode);
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    return descriptor;
}

static void open_journal(void)
{
    REAL(mkdir);
    char path[PATH_MAX];
    const char *directory = getenv("CKPT_TEST_JOURNALS");
    if (!directory || snprintf(path, sizeof path, "%s/%d", directory, (int)getpid()) >= (int)sizeof path ||
        snprintf(kept, sizeof kept, "%s.kept", path) >= (int)sizeof kept)
        fail("CKPT_TEST_JOURNALS");
    journal = real_open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (journal < 0 || real(kept, 0700)) fail(path);
}

/* Append one record. Whoever calls holds the lock. */
static void note(struct record record, const void *replaced, const char *path, const char *path2)
{
    REAL(writev);
    if (journal < 0) open_journal();
    record.path_bytes = path ? strlen(path) : 0;
    record.path2_bytes = path2 ? strlen(path2) : 0;
    struct iovec parts[] = {
        {&record, sizeof record},
        {(void *)replaced, record.replaced},
        {(void *)path, record.path_bytes},
        {(void *)path2, record.path2_bytes},
    };
    size_t total = sizeof record + record.replaced + record.path_bytes + record.path2_bytes;
    if (real(journal, parts, 4) != (ssize_t)total) fail("the journal takes no more");
    position += total;
}

/* ------------------------------------------------------------------------------ what is whose */

static bool below_root(const char *path)
{
    return root_bytes && !strncmp(path, root, root_bytes);
}

/* The absolute path, or false when it is none of ours. */
static bool resolve(int directory, const char *path, char *whole)
{
    char base[PATH_MAX];
    if (!root_bytes) return false;
    if (path[0] == '/') {
        snprintf(whole, PATH_MAX, "%s", path);
    } else if (directory == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) return false;
        if (snprintf(whole, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) return false;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        ssize_t length = readlink(link, base, sizeof base - 1);
        if (length < 0) return false;
        base[length] = 0;
        if (snprintf(whole, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) return false;
    }
    return below_root(whole);
}

/* Whether a descriptor is a file or directory at or below the root; says what it is. */
static bool ours(int descriptor, struct stat *found)
{
    char link[64], path[PATH_MAX];
    if (!root_bytes || fstat(descriptor, found)) return false;
    if (!S_ISREG(found->st_mode) && !S_ISDIR(found->st_mode)) return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 2);
    if (length < 0) return false;
    strcpy(path + length, "/");
    return below_root(path);
}

static uint64_t inode_of_parent(const char *path)
{
    char parent[PATH_MAX];
    struct stat found;
    snprintf(parent, sizeof parent, "%s", path);
    char *slash = strrchr(parent, '/');
    if (slash) *slash = 0;
    return stat(parent, &found) ? 0 : found.st_ino;
}

/* A second name for what is about to lose its own. */
static void keep(const char *path)
{
    REAL(linkat);
    char name[PATH_MAX + 32];
    struct stat found;
    if (lstat(path, &found) || !S_ISREG(found.st_mode)) return;
    if (journal < 0) open_journal();
    snprintf(name, sizeof name, "%s/%llu", kept, (unsigned long long)position);
    if (real(AT_FDCWD, path, AT_FDCWD, name, 0)) fail(name);
}

/* ------------------------------------------------------------------------------ content */

/* Note a change of `length` bytes at `offset`; whoever calls holds the lock. */
static void note_bytes(enum kind kind, int descriptor, const struct stat *found, off_t offset, size_t length)
{
    struct record record = {.kind = kind, .inode = found->st_ino, .offset = offset, .length = length,
                            .old_size = found->st_size};
    char *replaced = NULL;
    if (offset < found->st_size) {
        char link[64];
        size_t wanted = length;
        if ((off_t)wanted > found->st_size - offset) wanted = found->st_size - offset;
        replaced = malloc(wanted);
        snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
        int reader = real_open(link, O_RDONLY, 0);
        if (!replaced || reader < 0) fail(link);
        while (record.replaced < wanted) {
            ssize_t count = pread(reader, replaced + record.replaced, wanted - record.replaced,
                                  offset + record.replaced);
            if (count <= 0) fail("reading what is replaced");
            record.replaced += count;
        }
        close(reader);
    }
    note(record, replaced, NULL, NULL);
    free(replaced);
}

static size_t bytes_of(const struct iovec *parts, int count)
{
    size_t total = 0;
    for (int index = 0; index < count; index++) total += parts[index].iov_len;
    return total;
}

/* `offset` of -1: where the descriptor stands. */
#define WRITING(descriptor, at, length, call) \
    struct stat found; \
    if (!ours(descriptor, &found) || !S_ISREG(found.st_mode)) return call; \
    pthread_mutex_lock(&lock); \
    fstat(descriptor, &found); \
    off_t begin_at = (at); \
    if (begin_at < 0) { \
        bool appends = fcntl(descriptor, F_GETFL) & O_APPEND; \
        begin_at = appends ? found.st_size : lseek(descriptor, 0, SEEK_CUR); \
    } \
    note_bytes(WRITE, descriptor, &found, begin_at, length); \
    ssize_t result = call; \
    int error = errno; \
    pthread_mutex_unlock(&lock); \
    errno = error; \
    return result

ssize_t write(int descriptor, const void *data, size_t length)
{
    REAL(write);
    WRITING(descriptor, -1, length, real(descriptor, data, length));
}

ssize_t writev(int descriptor, const struct iovec *parts, int count)
{
    REAL(writev);
    WRITING(descriptor, -1, bytes_of(parts, count), real(descriptor, parts, count));
}

ssize_t pwrite(int descriptor, const void *data, size_t length, off_t offset)
{
    REAL(pwrite);
    WRITING(descriptor, offset, length, real(descriptor, data, length, offset));
}

ssize_t pwritev(int descriptor, const struct iovec *parts, int count, off_t offset)
{
    REAL(pwritev);
    WRITING(descriptor, offset, bytes_of(parts, count), real(descriptor, parts, count, offset));
}

ssize_t pwritev2(int descriptor, const struct iovec *parts, int count, off_t offset, int flags)
{
    REAL(pwritev2);
    WRITING(descriptor, offset, bytes_of(parts, count), real(descriptor, parts, count, offset, flags));
}

/* off_t has 64 bits here, so the second names are the same functions. */
_Static_assert(sizeof(off_t) == 8, "off_t has 64 bits");
ssize_t pwrite64(int, const void *, size_t, off_t) __attribute__((alias("pwrite")));
ssize_t pwritev64(int, const struct iovec *, int, off_t) __attribute__((alias("pwritev")));
ssize_t pwritev64v2(int, const struct iovec *, int, off_t, int) __attribute__((alias("pwritev2")));

/* What lies behind the new end is replaced; a file that grows replaces nothing. */
#define RESIZING(descriptor, size, call) \
    struct stat found; \
    if (!ours(descriptor, &found) || !S_ISREG(found.st_mode)) return call; \
    pthread_mutex_lock(&lock); \
    fstat(descriptor, &found); \
    off_t lost = found.st_size > (off_t)(size) ? found.st_size - (off_t)(size) : 0; \
    note_bytes(RESIZE, descriptor, &found, size, lost); \
    int result = call; \
    int error = errno; \
    pthread_mutex_unlock(&lock); \
    errno = error; \
    return result

int ftruncate(int descriptor, off_t size)
{
    REAL(ftruncate);
    RESIZING(descriptor, size, real(descriptor, size));
}

int posix_fallocate(int descriptor, off_t offset, off_t length)
{
    REAL(posix_fallocate);
    /* Never less than it has: nothing is replaced. */
    RESIZING(descriptor, found.st_size > offset + length ? found.st_size : offset + length,
             real(descriptor, offset, length));
}

int ftruncate64(int, off_t) __attribute__((alias("ftruncate")));
int posix_fallocate64(int, off_t, off_t) __attribute__((alias("posix_fallocate")));

/* ------------------------------------------------------------------------------ syncs */

#define SYNCING(descriptor, call) \
    struct stat found; \
    if (!ours(descriptor, &found)) return call; \
    pthread_mutex_lock(&lock); \
    struct record record = {.kind = SYNC, .inode = found.st_ino, .offset = position}; \
    pthread_mutex_unlock(&lock); \
    int result = call; \
    if (result == 0 && !lying) { \
        pthread_mutex_lock(&lock); \
        note(record, NULL, NULL, NULL); \
        pthread_mutex_unlock(&lock); \
    } \
    return result

int fsync(int descriptor)
{
    REAL(fsync);
    SYNCING(descriptor, real(descriptor));
}

int fdatasync(int descriptor)
{
    REAL(fdatasync);
    SYNCING(descriptor, real(descriptor));
}

/* ------------------------------------------------------------------------------ names */

static void note_names(enum kind kind, const char *path, const char *path2)
{
    struct record record = {.kind = kind, .inode = inode_of_parent(path),
                            .inode2 = path2 ? inode_of_parent(path2) : 0};
    note(record, NULL, path, path2);
}

static int opening(int directory, const char *path, int flags, mode_t mode)
{
    REAL(openat);
    char whole[PATH_MAX];
    if (!(flags & (O_CREAT | O_TRUNC)) || !resolve(directory, path, whole))
        return real(directory, path, flags, mode);
    pthread_mutex_lock(&lock);
    struct stat found;
    bool there = !stat(whole, &found);
    if (!there && flags & O_CREAT) note_names(CREATE, whole, NULL);
    if (there && flags & O_TRUNC && !(flags & O_EXCL) && S_ISREG(found.st_mode)) {
        int reader = real_open(whole, O_RDONLY, 0);
        if (reader < 0) fail(whole);
        note_bytes(RESIZE, reader, &found, 0, found.st_size);
        close(reader);
    }
    int result = real(directory, path, flags, mode);
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}

static mode_t mode_of(int flags, va_list arguments)
{
    return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(arguments, mode_t) : 0;
}

int open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return opening(AT_FDCWD, path, flags, mode);
}

int openat(int directory, const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return opening(directory, path, flags, mode);
}

int open64(const char *, int, ...) __attribute__((alias("open")));
int openat64(int, const char *, int, ...) __attribute__((alias("openat")));

int renameat(int old_directory, const char *old, int directory, const char *path)
{
    REAL(renameat);
    char from[PATH_MAX], to[PATH_MAX];
    if (!resolve(old_directory, old, from) || !resolve(directory, path, to))
        return real(old_directory, old, directory, path);
    pthread_mutex_lock(&lock);
    struct stat found;
    if (!lstat(from, &found)) {
        keep(to);
        note_names(RENAME, from, to);
    }
    int result = real(old_directory, old, directory, path);
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}

int rename(const char *old, const char *path)
{
    return renameat(AT_FDCWD, old, AT_FDCWD, path);
}

int unlinkat(int directory, const char *path, int flags)
{
    REAL(unlinkat);
    char whole[PATH_MAX];
    if (flags & AT_REMOVEDIR || !resolve(directory, path, whole)) return real(directory, path, flags);
    pthread_mutex_lock(&lock);
    struct stat found;
    if (!lstat(whole, &found)) {
        keep(whole);
        note_names(UNLINK, whole, NULL);
    }
    int result = real(directory, path, flags);
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}

int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

int mkdirat(int directory, const char *path, mode_t mode)
{
    REAL(mkdirat);
    char whole[PATH_MAX];
    if (!resolve(directory, path, whole)) return real(directory, path, mode);
    pthread_mutex_lock(&lock);
    struct stat found;
    if (lstat(whole, &found)) note_names(MKDIR, whole, NULL);
    int result = real(directory, path, mode);
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}

int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

int linkat(int old_directory, const char *old, int directory, const char *path, int flags)
{
    REAL(linkat);
    char whole[PATH_MAX];
    if (!resolve(directory, path, whole)) return real(old_directory, old, directory, path, flags);
    pthread_mutex_lock(&lock);
    struct stat found;
    if (lstat(whole, &found)) note_names(CREATE, whole, NULL);
    int result = real(old_directory, old, directory, path, flags);
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}

int link(const char *old, const char *path)
{
    return linkat(AT_FDCWD, old, AT_FDCWD, path, 0);
}
