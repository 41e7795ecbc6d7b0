/* Preloaded into the processes of a runtime: counts what they make durable, and kills or fails at a chosen one.
 *
 * Counted: writes, truncations, renames and removals of files below $CRASH_HOME, and messages to the sockets in
 * $CRASH_POSTGRES_SOCKET. The number is in the file $CRASH_COUNTER, which all processes of a case share.
 * CRASH_WRITE_KILL=N: SIGKILL directly after number N.   CRASH_WRITE_FULL=N: from number N on, "No space left".
 * CRASH_SYNCED=FOLDER: a copy of each file as it was when it was last synced or renamed, for power cuts. The name of a
 * copy is the path below $CRASH_HOME with backslashes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

static pid_t ready;
static long kill_at, full_at;
static volatile long *count;
static const char *home, *peer, *synced;
static size_t home_length, peer_length;

static int setup(void) {
    if (ready == getpid()) return count != NULL;
    const char *path = getenv("CRASH_COUNTER"), *k = getenv("CRASH_WRITE_KILL"), *f = getenv("CRASH_WRITE_FULL");
    home = getenv("CRASH_HOME");
    peer = getenv("CRASH_POSTGRES_SOCKET");
    synced = getenv("CRASH_SYNCED");
    if (!path || !home) return 0;
    home_length = strlen(home);
    peer_length = peer ? strlen(peer) : 0;
    kill_at = k ? atol(k) : 0;
    full_at = f ? atol(f) : 0;
    int fd = open(path, O_RDWR);
    void *place = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    count = place == MAP_FAILED ? NULL : place;
    ready = getpid();
    return count != NULL;
}

static int kept_path(const char *path) {
    return setup() && !strncmp(path, home, home_length) && !strstr(path, "-shm");
}

static int path_of(int fd, char name[4096]) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, 4095);
    if (length <= 0) return 0;
    name[length] = 0;
    return 1;
}

static int kept_file(int fd) {
    char name[4096];
    return setup() && path_of(fd, name) && kept_path(name);
}

/* Copy a file that is on the disk now. It is read through its own descriptor where that is possible: to close another
 * one would drop the locks that the process has on the file. */
static void copy_synced(int fd, const char *path) {
    char part[4096], name[4096], data[65536];
    struct stat about;
    if (!synced || !kept_path(path) || stat(path, &about) || !S_ISREG(about.st_mode)) return;
    int own = fd < 0 || pread(fd, data, 1, 0) < 0 ? open(path, O_RDONLY) : -1, from = own < 0 ? fd : own;
    snprintf(part, sizeof part, "%s/part-%d-%d", synced, getpid(), gettid());
    int length = snprintf(name, sizeof name, "%s/", synced);
    snprintf(name + length, sizeof name - length, "%s", path + home_length + 1);
    for (char *each = name + length; *each; each++) if (*each == '/') *each = '\\';
    int to = open(part, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ssize_t got;
    for (off_t at = 0; (got = pread(from, data, sizeof data, at)) > 0; at += got) write(to, data, got);
    close(to);
    if (own >= 0) close(own);
    rename(part, name);
}

static int kept_socket(int fd) {
    struct sockaddr_un address;
    socklen_t length = sizeof address;
    if (!setup() || !peer_length || getpeername(fd, (struct sockaddr *)&address, &length)) return 0;
    return address.sun_family == AF_UNIX && !strncmp(address.sun_path, peer, peer_length);
}

/* Count one. Returns true if the disk is full. */
static int full(void) {
    long number = __sync_add_and_fetch(count, 1);
    return full_at && number >= full_at;
}

static void done(void) {
    if (kill_at && *count == kill_at) kill(getpid(), SIGKILL);
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define GUARD(kept, fills, call) \
    if (!(kept)) return call; \
    if (full() && fills) { errno = ENOSPC; return -1; } \
    __typeof__(call) got = call; \
    done(); \
    return got

ssize_t write(int fd, const void *data, size_t size) { REAL(write); GUARD(kept_file(fd), 1, real(fd, data, size)); }
ssize_t writev(int fd, const struct iovec *v, int n) { REAL(writev); GUARD(kept_file(fd), 1, real(fd, v, n)); }
ssize_t pwrite(int fd, const void *d, size_t n, off_t o) { REAL(pwrite); GUARD(kept_file(fd), 1, real(fd, d, n, o)); }
ssize_t pwrite64(int fd, const void *d, size_t n, off64_t o) { REAL(pwrite64); GUARD(kept_file(fd), 1, real(fd, d, n, o)); }
int ftruncate(int fd, off_t size) { REAL(ftruncate); GUARD(kept_file(fd), 0, real(fd, size)); }
int ftruncate64(int fd, off64_t size) { REAL(ftruncate64); GUARD(kept_file(fd), 0, real(fd, size)); }
static int renamed(const char *a, const char *b) { REAL(rename); GUARD(kept_path(b), 0, real(a, b)); }
int rename(const char *a, const char *b) {
    int got = renamed(a, b);
    if (!got && synced && kept_path(b)) copy_synced(-1, b);
    return got;
}
static int sync_and_copy(int got, int fd) {
    char name[4096];
    if (!got && setup() && synced && path_of(fd, name)) copy_synced(fd, name);
    return got;
}
int fsync(int fd) { REAL(fsync); return sync_and_copy(real(fd), fd); }
int fdatasync(int fd) { REAL(fdatasync); return sync_and_copy(real(fd), fd); }
int unlink(const char *path) { REAL(unlink); GUARD(kept_path(path), 0, real(path)); }
ssize_t send(int fd, const void *d, size_t n, int f) { REAL(send); GUARD(kept_socket(fd), 0, real(fd, d, n, f)); }
ssize_t sendto(int fd, const void *d, size_t n, int f, const struct sockaddr *a, socklen_t l) {
    REAL(sendto);
    GUARD(kept_socket(fd), 0, real(fd, d, n, f, a, l));
}
