/* Preloaded into a process: counts, fails, tears and records the writes to a journal's files.
 *
 * DISK_FAULT=before|torn|after|enospc|enospc_ever|eio   what happens at write number DISK_AT (from 1)
 * DISK_TRACE=FILE   record every write, truncation, sync and removal: see read_trace in disk.py
 * A write counts if its file's name holds "journal.sqlite3" and is not the index ("-shm").
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static long at = -2, count;
static const char *fault;
static int trace = -1, broken;

static void setup(void) {
    if (at != -2) return;
    const char *number = getenv("DISK_AT"), *path = getenv("DISK_TRACE");
    fault = getenv("DISK_FAULT");
    at = number ? atol(number) : -1;
    if (path) trace = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
}

/* Called by a forked process whose environment has changed. */
void disk_configure(void) {
    at = -2;
    count = broken = 0;
    setup();
}

static const char *journal_name(int fd) {
    static __thread char name[4096];
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof name - 1);
    if (length <= 0) return NULL;
    name[length] = 0;
    const char *base = strrchr(name, '/');
    base = base ? base + 1 : name;
    if (!strstr(base, "journal.sqlite3") || strstr(base, "-shm")) return NULL;
    return base;
}

/* Record: kind, name length, offset, size, name, data. */
static void record(char kind, const char *name, int64_t offset, const void *data, int64_t size) {
    if (trace < 0) return;
    char head[19];
    uint16_t length = strlen(name);
    head[0] = kind;
    memcpy(head + 1, &length, 2);
    memcpy(head + 3, &offset, 8);
    memcpy(head + 11, &size, 8);
    static ssize_t (*plain)(int, const void *, size_t);
    if (!plain) plain = dlsym(RTLD_NEXT, "write");
    plain(trace, head, 19);
    plain(trace, name, length);
    if (data) plain(trace, data, size);
}

typedef ssize_t (*pwrite_t)(int, const void *, size_t, off_t);

static ssize_t written(pwrite_t plain, int fd, const void *data, size_t size, off_t offset) {
    setup();
    const char *name = journal_name(fd);
    if (!name) return plain(fd, data, size, offset);
    if (broken && !strcmp(fault, "enospc_ever")) { errno = ENOSPC; return -1; }
    if (++count == at && fault) {
        broken = 1;
        if (!strcmp(fault, "before")) kill(getpid(), SIGKILL);
        if (!strcmp(fault, "torn")) { plain(fd, data, size / 2, offset); kill(getpid(), SIGKILL); }
        if (!strcmp(fault, "after")) { plain(fd, data, size, offset); kill(getpid(), SIGKILL); }
        if (!strncmp(fault, "enospc", 6)) { errno = ENOSPC; return -1; }
        if (!strcmp(fault, "eio")) { errno = EIO; return -1; }
    }
    ssize_t done = plain(fd, data, size, offset);
    if (done > 0) record('w', name, offset, data, done);
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    static pwrite_t plain;
    if (!plain) plain = (pwrite_t)dlsym(RTLD_NEXT, "pwrite64");
    return written(plain, fd, data, size, offset);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    static pwrite_t plain;
    if (!plain) plain = (pwrite_t)dlsym(RTLD_NEXT, "pwrite");
    return written(plain, fd, data, size, offset);
}

static int synced(int (*plain)(int), int fd) {
    setup();
    const char *name = journal_name(fd);
    int done = plain(fd);
    if (name && !done) record('s', name, 0, NULL, 0);
    return done;
}

int fsync(int fd) {
    static int (*plain)(int);
    if (!plain) plain = dlsym(RTLD_NEXT, "fsync");
    return synced(plain, fd);
}

int fdatasync(int fd) {
    static int (*plain)(int);
    if (!plain) plain = dlsym(RTLD_NEXT, "fdatasync");
    return synced(plain, fd);
}

static int truncated(int (*plain)(int, off_t), int fd, off_t size) {
    setup();
    const char *name = journal_name(fd);
    int done = plain(fd, size);
    if (name && !done) record('t', name, size, NULL, 0);
    return done;
}

int ftruncate(int fd, off_t size) {
    static int (*plain)(int, off_t);
    if (!plain) plain = (int (*)(int, off_t))dlsym(RTLD_NEXT, "ftruncate");
    return truncated(plain, fd, size);
}

int ftruncate64(int fd, off64_t size) {
    static int (*plain)(int, off_t);
    if (!plain) plain = (int (*)(int, off_t))dlsym(RTLD_NEXT, "ftruncate64");
    return truncated(plain, fd, size);
}

/* Called by the program itself: a mark in the trace, such as "a payment was made". */
void disk_mark(const char *text) {
    setup();
    record('m', text, 0, NULL, 0);
}

int unlink(const char *path) {
    static int (*plain)(const char *);
    if (!plain) plain = dlsym(RTLD_NEXT, "unlink");
    setup();
    int done = plain(path);
    const char *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    if (!done && strstr(base, "journal.sqlite3") && !strstr(base, "-shm")) record('u', base, 0, NULL, 0);
    return done;
}
